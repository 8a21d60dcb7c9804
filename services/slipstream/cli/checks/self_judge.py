"""Check the question and the verdicts of the reward `self_judge` against the model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from slipstream.cli.checks.chat import read_chat_template
from slipstream.cli.checks.model import ModelFiles
from slipstream.cli.checks.prompts import prompt_text
from slipstream.config import RunConfig
from slipstream.config.checks import Problem
from slipstream.config.rewards import SelfJudgeConfig
from slipstream.prompts import make_source
from slipstream.prompts.judge_question import judge_question

PROMPTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The tokenizer and the context of a model."""

    tokens: Callable[[str], list[int]]
    context: int | None


def check_self_judge(config: RunConfig, model: ModelFiles | None) -> Iterator[Problem]:
    """Yield problems: verdicts that begin with the same token, and a question too long for the context."""
    reading = _reading(config, model)
    for position, reward in enumerate(config.rewards):
        if isinstance(reward, SelfJudgeConfig) and reading is not None:
            yield from _verdicts(reward, reading, f"rewards.{position}.verdicts")
            yield from _context(config, reward, reading, f"rewards.{position}.question")


def _reading(config: RunConfig, model: ModelFiles | None) -> Reading | None:
    if config.model.tiny is not None:
        return Reading(tokens=lambda text: list(map(ord, text)), context=config.model.tiny.max_tokens)
    if model is None or model.tokenizer is None:
        return None
    tokenizer = model.tokenizer
    return Reading(
        tokens=lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids), context=model.context
    )


def _verdicts(reward: SelfJudgeConfig, reading: Reading, key: str) -> Iterator[Problem]:
    right, wrong = (reading.tokens(verdict)[:1] for verdict in reward.verdicts)
    if not right or not wrong or right == wrong:
        reason = f"are {reward.verdicts[0]!r} and {reward.verdicts[1]!r}, which begin with the same token"
        yield Problem(key=key, reason=reason, remedy="choose verdicts that differ from their first token on")


def _context(config: RunConfig, reward: SelfJudgeConfig, reading: Reading, key: str) -> Iterator[Problem]:
    """Yield a problem if the question, with one of the first prompts, leaves too few tokens for an answer."""
    try:
        source = make_source(config.data, seed=config.seed)
        drawn = map(source.training, range(PROMPTS))
        prompts = [prompt for prompt in drawn if reward.applies_to(prompt.source)]
    except (ValueError, OSError, ImportError, IndexError):
        return  # check_prompts reports it
    if reading.context is None or not prompts:
        return
    template = None if config.model.path is None else read_chat_template(config.model.path)
    questions = (
        prompt_text(judge_question(reward.question, prompt, answer=""), template) for prompt in prompts
    )
    longest = max(len(reading.tokens(text)) for text in questions)
    room = reading.context - config.rollout.max_new_tokens - longest
    if room < 1:
        yield Problem(
            key=key,
            reason=f"has up to {longest} tokens with a prompt in it; with rollout.max_new_tokens of "
            f"{config.rollout.max_new_tokens} no answer fits the model's context of {reading.context}",
            remedy="shorten it, or give model a larger context",
        )
    elif room < config.rollout.max_new_tokens:
        yield Problem(
            key=key,
            reason=f"leaves {room} tokens for an answer, and rollout.max_new_tokens is "
            f"{config.rollout.max_new_tokens}: longer answers are invalid",
            remedy="shorten it, or give model a larger context",
            severity="note",
        )
