"""Prompts to token ids, and completions to text for the rewards. Never the other way round (invariant 1)."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from slipstream.config import RunConfig
from slipstream.config.architecture import context_of
from slipstream.config.rewards import SelfJudgeConfig
from slipstream.config.stages import DistillationStage, SampledStage
from slipstream.prompts.judge_question import fill_template
from slipstream.prompts.verbalized import INSTRUCTION
from slipstream.records import Prompt

TURN = "ANSWER"
"""Stands for an answer where a chat template is looked at."""


class PromptTooLong(ValueError):
    """The prompt leaves no room for a completion in the model's context."""


class Tokens:
    """The tokenizer of the policy's directory."""

    def __init__(self, tokenizer: Any, *, context_tokens: int | None, max_new_tokens: int) -> None:
        """`context_tokens`: longest sequence, prompt and completion together; None for no bound."""
        self._tokenizer = tokenizer
        self._longest = None if context_tokens is None else context_tokens - max_new_tokens

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt as the engine sees it; messages go through the chat template.

        Errors: PromptTooLong when prompt and completion do not fit the model's context.
        """
        if prompt.messages:
            messages = [{"role": m.role, "content": m.content} for m in prompt.messages]
            encoded = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=True
            )
            ids = encoded["input_ids"]
        else:
            ids = self._tokenizer(prompt.text)["input_ids"]
        if self._longest is not None and len(ids) > self._longest:
            raise PromptTooLong(
                f"prompt {prompt.prompt_id} has {len(ids)} tokens; with rollout.max_new_tokens at most "
                f"{self._longest} fit the context"
            )
        return tuple(ids)

    def encode_answer(self, text: str, *, prompt: Prompt | None = None) -> tuple[int, ...]:
        """A demonstration as the policy should sample it: the text, then end of sequence.

        After a prompt of messages that is what the chat template puts behind the turn of an assistant.
        """
        ids = self.encode_text(text)
        end = self._tokenizer.eos_token_id
        if prompt is not None and prompt.messages and self.end_of_turn is not None:
            end = self.end_of_turn
        return ids if end is None else (*ids, end)

    @cached_property
    def end_of_turn(self) -> int | None:
        """The first special token that the chat template puts behind an answer; None where there is none."""
        if not self._tokenizer.chat_template:
            return None
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": TURN}]
        text: str = self._tokenizer.apply_chat_template(turns, tokenize=False)
        _, answer, behind = text.rpartition(TURN)
        special = {number for number, token in self._tokenizer.added_tokens_decoder.items() if token.special}
        ids = self.encode_text(behind) if answer else ()
        return next((number for number in ids if number in special), None)

    def encode_text(self, text: str) -> tuple[int, ...]:
        """A text by itself, without special tokens."""
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def harmless(self, text: str) -> str:
        """A text that is put into a prompt by who may not speak in another's name: see `harmless`."""
        return harmless(self._tokenizer, text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a completion, without special tokens."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text


def harmless(tokenizer: Any, text: str) -> str:
    """The text with every special token of the tokenizer broken up: spelled out, it would be one."""
    added = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    for token in sorted(added | set(tokenizer.all_special_tokens), key=len, reverse=True):
        text = text.replace(token, f"{token[:1]} {token[1:]}" if token[1:] else " ")
    return text


def engine_context(config: RunConfig, limit: int | None, *, around: int = 0) -> int | None:
    """Longest sequence in tokens that an engine of this run takes; None for what vLLM finds itself.
    `limit` is the model's context, `around` the tokens of the longest of `added_texts`.

    `slipstream run` measures the prompts and fills in rollout.context_tokens. Elsewhere a row of training is
    the bound, because a longer sequence could not be trained on. What is asked beyond training has that much
    and what is added to it: a question about an answer, or an instruction, and what is sampled behind it.
    """
    if config.rollout.context_tokens is not None:
        wanted: int | None = config.rollout.context_tokens
    elif any(isinstance(stage, DistillationStage) for stage in config.stages):
        wanted = None  # a row counts tokens of the policy, and the engine those of another model
    else:
        wanted = config.learner.max_tokens_per_row
        if added_texts(config):
            wanted += around + config.rollout.max_new_tokens
    return min((bound for bound in (wanted, limit) if bound is not None), default=None)


def added_texts(config: RunConfig) -> list[str]:
    """What the run puts around prompts, and answers to them, to ask for more than it trains on."""
    judges = (reward for reward in config.rewards if isinstance(reward, SelfJudgeConfig))
    questions = [fill_template(judge.question, prompt="", answer="", reference="") for judge in judges]
    sampled = any(isinstance(stage, SampledStage) for stage in config.stages)
    asked = (config.evaluation, config.rollout) if sampled else (config.evaluation,)
    instructions = [
        INSTRUCTION.format(candidates=section.candidates)
        for section in asked
        if section.sampling == "verbalized"
    ]
    return questions + instructions


def served_context(config: RunConfig, model_dir: Path) -> int | None:
    """Longest sequence in tokens that an engine of this run takes on a model directory."""
    texts = added_texts(config)
    tokens = load_tokens(model_dir, max_new_tokens=config.rollout.max_new_tokens) if texts else None
    around = max((len(tokens.encode_text(text)) for text in texts), default=0) if tokens else 0
    return engine_context(config, model_context(model_dir), around=around)


def load_tokens(model_dir: Path, *, max_new_tokens: int) -> Tokens:
    """The tokenizer and context length of a model directory."""
    return _tokens(model_dir, context_tokens=model_context(model_dir), max_new_tokens=max_new_tokens)


def load_engine_tokens(config: RunConfig, model_dir: Path) -> Tokens:
    """The tokenizer of a model directory, and the context of the engine that serves it in a run."""
    context = served_context(config, model_dir)
    return _tokens(model_dir, context_tokens=context, max_new_tokens=config.rollout.max_new_tokens)


def model_context(model_dir: Path) -> int | None:
    """Longest sequence in tokens that a model directory states."""
    from transformers import AutoConfig

    return context_of(AutoConfig.from_pretrained(model_dir).to_dict())


def _tokens(model_dir: Path, *, context_tokens: int | None, max_new_tokens: int) -> Tokens:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    return Tokens(tokenizer, context_tokens=context_tokens, max_new_tokens=max_new_tokens)
