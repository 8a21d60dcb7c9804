"""Check that the user's own rewards can be imported and called, and return scores; check `self_judge`."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from slipstream.cli.checks.chat import read_chat_template
from slipstream.cli.checks.model import ModelFiles
from slipstream.cli.checks.prompts import prompt_text
from slipstream.config import Problem, RunConfig, data, load, rewards
from slipstream.processes.failure import why_failed
from slipstream.prompts import judging, make_source, prompt_json
from slipstream.records import Prompt

TRY = "slipstream.verifier.try_rewards"
START_SECONDS = 120.0
"""Time to import the user's modules, in addition to the deadlines of the calls."""
BUSY = 5
"""Factor on the deadline of a call on a busy machine, as in the verifier."""
LOOKED_AT, MOST_ROWS = 64, 3
"""Prompts that are read, and the most that are tried, one of each task; of a mixture one of each source."""
REMEDY = (
    "it is called as function(prompt, {answers}, **arguments) and returns {result}; the text of an answer is "
    "answer.text, the ground truth is prompt.answer"
)
JUDGED_PROMPTS = 100


def check_rewards(
    config: RunConfig, *, folder: Path | None = None, prompts: bool = True
) -> Iterator[Problem]:
    """Yield the problems of `custom` rewards, and of a `format` that excludes every exact match.

    `folder`: where the modules of the rewards are; by default the working directory. Without `prompts`, the
    data is not on this machine, and no function is called.
    """
    custom = [reward for reward in config.rewards if isinstance(reward, rewards.CustomConfig)]
    if not custom and not _may_exclude(config):
        return
    rows = demonstrations(config) if prompts else []
    calls = sum(reward.timeout_seconds for reward in custom) * BUSY * 2 * max(1, len(rows))
    demonstrated = [[prompt_json.prompt_to_json(prompt), text] for prompt, text in rows]
    request = json.dumps({"config": load.given_tree(config), "rows": demonstrated})
    try:
        report = _tried(request, START_SECONDS + calls, str(folder or Path.cwd()))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        yield Problem(
            key="rewards",
            reason=f"the process that tried them ended: {why_failed(error)}",
            remedy="look at what the modules of your own rewards do when they are imported",
        )
        return
    for tried in report["custom"]:
        if prompts or tried["refused"]:
            yield _problem(config, tried, rows)
    for name in report["excluded"]:
        yield Problem(
            key="rewards",
            reason=f"`exact_match` compares the whole completion, and no ground truth has the form that "
            f"`{name}` wants: no answer can score both",
            remedy="set `extract` of exact_match, for example to answer_tag",
            severity="note",
        )


def demonstrations(config: RunConfig) -> list[tuple[Prompt, str]]:
    """Return the first training prompt of each task and source with a right answer; none if the data cannot
    be read."""
    try:
        source = make_source(config.data, seed=config.seed)
        first: dict[tuple[str, str], tuple[Prompt, str]] = {}
        for index in range(LOOKED_AT):
            with suppress(ValueError):  # a source of the kind `seeds` has no demonstrations
                prompt, text = source.demonstration(index)
                first.setdefault((prompt.source, prompt.task), (prompt, text))
    except (ValueError, OSError, ImportError):  # check_prompts reports it
        return []
    return list(first.values())[: max(MOST_ROWS, len(data.parts(config.data)))]


def _problem(config: RunConfig, tried: dict[str, Any], rows: list[tuple[Prompt, str]]) -> Problem:
    """Return why a function is refused, or a note of the scores that it returned."""
    reward = config.rewards[tried["position"]]
    assert isinstance(reward, rewards.CustomConfig)
    key = f"rewards.{tried['position']}.{'function' if reward.function else 'entry_point'}"
    if tried["refused"]:
        answers, result = ("answers", "as many numbers") if reward.group else ("answer", "a finite number")
        remedy = REMEDY.format(answers=answers, result=result)
        if tried["refused"].startswith("cannot be imported"):
            remedy = (
                "name a function that the verifier can import, from where it runs or from what is installed"
            )
        return Problem(key=key, reason=tried["refused"], remedy=remedy)
    if "row" not in tried:
        reason, remedy = "was not called, because there is no row of data", "correct the data"
        return Problem(key=key, reason=reason, remedy=remedy, severity="note")
    prompt, text = rows[tried["row"]]
    told_apart = tried["demonstration"] != tried["empty"]
    return Problem(
        key=key,
        reason=f"`{reward.name}` says {tried['demonstration']} of the right answer {text[:60]!r} to prompt "
        f"{prompt.prompt_id}, and {tried['empty']} of an empty one",
        remedy="look whether that is meant"
        if told_apart
        else "it should tell them apart, or nothing is learned",
        severity="note",
    )


def _may_exclude(config: RunConfig) -> bool:
    kinds = config.rewards
    whole_text = any(
        isinstance(reward, rewards.ExactMatchConfig) and reward.extract == "whole" for reward in kinds
    )
    return whole_text and any(isinstance(reward, rewards.FormatConfig) for reward in kinds)


@lru_cache(maxsize=8)
def _tried(request: str, seconds: float, folder: str) -> dict[str, Any]:
    """Return the child's report, cached for stages with the same rewards.

    Errors: SubprocessError, OSError, ValueError.
    """
    done = subprocess.run(
        [sys.executable, "-m", TRY],
        cwd=folder,
        input=request,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The tokenizer and the context of a model."""

    tokens: Callable[[str], list[int]]
    context: int | None


def check_self_judge(config: RunConfig, model: ModelFiles | None) -> Iterator[Problem]:
    """Yield problems: verdicts that begin with the same token, and a question too long for the context."""
    reading = _reading(config, model)
    for position, reward in enumerate(config.rewards):
        if isinstance(reward, rewards.SelfJudgeConfig) and reading is not None:
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


def _verdicts(reward: rewards.SelfJudgeConfig, reading: Reading, key: str) -> Iterator[Problem]:
    right, wrong = (reading.tokens(verdict)[:1] for verdict in reward.verdicts)
    if not right or not wrong or right == wrong:
        reason = f"are {reward.verdicts[0]!r} and {reward.verdicts[1]!r}, which begin with the same token"
        yield Problem(key=key, reason=reason, remedy="choose verdicts that differ from their first token on")


def _context(
    config: RunConfig, reward: rewards.SelfJudgeConfig, reading: Reading, key: str
) -> Iterator[Problem]:
    """Yield a problem if the question, with one of the first prompts, leaves too few tokens for an answer."""
    try:
        source = make_source(config.data, seed=config.seed)
        drawn = map(source.training, range(JUDGED_PROMPTS))
        prompts = [prompt for prompt in drawn if reward.applies_to(prompt.source)]
    except (ValueError, OSError, ImportError, IndexError):
        return  # check_prompts reports it
    if reading.context is None or not prompts:
        return
    template = None if config.model.path is None else read_chat_template(config.model.path)
    questions = (
        prompt_text(judging.judge_question(reward.question, prompt, answer=""), template)
        for prompt in prompts
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
