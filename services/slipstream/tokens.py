"""Encodes prompts, and decodes completions for rewards; never encodes a completion (invariant 1)."""

from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from slipstream.config import RunConfig
from slipstream.config.architecture import context_of, text_settings
from slipstream.config.rewards import SelfJudgeConfig
from slipstream.config.stages import DistillationStage, SampledStage
from slipstream.prompts.judging import fill_template
from slipstream.prompts.verbalized import INSTRUCTION
from slipstream.records import Prompt, without_surrogates

TURN = "ANSWER"
"""Placeholder of an answer, to find what a chat template writes after it."""


class PromptTooLong(ValueError):
    """Prompt and completion together do not fit the model's context."""


class TemplateFailed(ValueError):
    """The chat template cannot render these messages."""


class Tokens:
    """The tokenizer of the policy."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        context_tokens: int | None,
        max_new_tokens: int,
        vocabulary: int | None = None,
    ) -> None:
        """`context_tokens`: longest sequence, prompt and completion together; None for no bound.
        `vocabulary`: number of token ids of the model; None: that of the tokenizer."""
        self._tokenizer = tokenizer
        self.vocabulary: int = len(tokenizer) if vocabulary is None else vocabulary
        """Number of token ids; an engine refuses a prompt with a greater one."""
        self.context_tokens = context_tokens
        """Longest sequence, prompt and completion together; None for no bound."""
        self._longest = None if context_tokens is None else context_tokens - max_new_tokens

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the token ids of a prompt; messages are rendered by the chat template.

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
        """Return the token ids of a demonstration: the text, then the end-of-sequence token.

        After a prompt of messages the end is the token that the chat template puts after an assistant's turn.
        """
        ids = self.encode_text(text)
        end = self._tokenizer.eos_token_id
        if prompt is not None and prompt.messages and self.end_of_turn is not None:
            end = self.end_of_turn
        return ids if end is None else (*ids, end)

    @cached_property
    def end_of_turn(self) -> int | None:
        """The first special token that the chat template puts after an answer; None if there is none."""
        if not self._tokenizer.chat_template:
            return None
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": TURN}]
        text: str = self._tokenizer.apply_chat_template(turns, tokenize=False)
        _, answer, behind = text.rpartition(TURN)
        ids = self.encode_text(behind) if answer else ()
        return next((number for number in ids if number in self._special), None)

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text, without special tokens."""
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    @cached_property
    def chat_template(self) -> str:
        """The source of the chat template, of that for tools if there are several; empty if there is none."""
        if not self._tokenizer.chat_template:
            return ""
        source: str = self._tokenizer.get_chat_template(tools=[{}])
        return source

    @cached_property
    def ends(self) -> frozenset[int]:
        """The tokens that end a sampled turn: the end of the sequence, and the end of an assistant's turn."""
        return frozenset({self._tokenizer.eos_token_id, self.end_of_turn} - {None})

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]],
        generation: bool,
        now: datetime | None = None,
    ) -> str:
        """Return messages as text of the chat template, with what begins an answer if `generation` is set.

        `now`: what the template reads as the present time; None for the clock. Errors: TemplateFailed.
        """
        clock: dict[str, Any] = {} if now is None else {"strftime_now": now.strftime}
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages, tools=tools or None, add_generation_prompt=generation, tokenize=False, **clock
            )
        except Exception as error:  # a template is a program of its model, and may raise anything
            raise TemplateFailed(" ".join(str(error).split()) or type(error).__name__) from error
        return text

    def first_special(self, text: str) -> int | None:
        """Return the special token with which the tokens of a text begin; None if that is none."""
        first = self.encode_text(text)[:1]
        return first[0] if first and first[0] in self._special else None

    def decode_with_special(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens included."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text

    def harmless(self, text: str) -> str:
        """Return the text without special tokens of this tokenizer, and without lone surrogates: see the
        function `harmless`."""
        return _harmless(text, self._special_texts)

    @cached_property
    def _special(self) -> frozenset[int]:
        added = self._tokenizer.added_tokens_decoder
        return frozenset(number for number, token in added.items() if token.special)

    @cached_property
    def _special_texts(self) -> list[str]:
        return _special_texts(self._tokenizer)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a completion, without special tokens."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text


def harmless(tokenizer: Any, text: str) -> str:
    """Return the text with a space inside each spelled-out special token, and without lone surrogates.

    Untrusted text in a prompt could otherwise end a turn and begin another by spelling such tokens. No
    tokenizer encodes a lone surrogate.
    """
    return _harmless(text, _special_texts(tokenizer))


def _special_texts(tokenizer: Any) -> list[str]:
    added = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return sorted(added | set(tokenizer.all_special_tokens), key=len, reverse=True)


def _harmless(text: str, special: list[str]) -> str:
    text = without_surrogates(text)
    for token in special:
        text = text.replace(token, f"{token[:1]} {token[1:]}" if token[1:] else " ")
    return text


def engine_context(config: RunConfig, limit: int | None, *, around: int = 0) -> int | None:
    """Return the maximum sequence length in tokens of the engines of a run; None leaves it to vLLM.

    `limit` is the model's context, `around` the tokens of the longest of `added_texts`.
    `slipstream run` measures the prompts and sets rollout.context_tokens. Without it the bound is the length
    of a training row, because a longer sequence cannot be trained on. Requests beyond training (a question
    to a judge, an instruction for verbalized sampling) need room for the added text and for one more
    completion.
    """
    if config.rollout.context_tokens is not None:
        wanted: int | None = config.rollout.context_tokens
    elif any(isinstance(stage, DistillationStage) for stage in config.stages):
        wanted = None  # a row is in tokens of the policy, and this engine serves another model
    else:
        wanted = config.learner.max_tokens_per_row
        if added_texts(config):
            wanted += around + config.rollout.max_new_tokens
    return min((bound for bound in (wanted, limit) if bound is not None), default=None)


def added_texts(config: RunConfig) -> list[str]:
    """Return the texts that a run adds to prompts in requests beyond training: questions and instructions."""
    judges = (reward for reward in config.rewards if isinstance(reward, SelfJudgeConfig))
    questions = [fill_template(judge.question, prompt="", answer="", reference="") for judge in judges]
    sampled = any(isinstance(stage, SampledStage) for stage in config.stages)
    sections = (config.evaluation, config.rollout) if sampled else (config.evaluation,)
    instructions = [
        INSTRUCTION.format(candidates=section.candidates)
        for section in sections
        if section.sampling == "verbalized"
    ]
    return questions + instructions


def served_context(config: RunConfig, model_dir: Path) -> int | None:
    """Return the maximum sequence length in tokens of an engine that serves a model directory in this run."""
    texts = added_texts(config)
    tokens = load_tokens(model_dir, max_new_tokens=config.rollout.max_new_tokens) if texts else None
    around = max((len(tokens.encode_text(text)) for text in texts), default=0) if tokens else 0
    return engine_context(config, model_context(model_dir), around=around)


def load_tokens(model_dir: Path, *, max_new_tokens: int) -> Tokens:
    """Load the tokenizer and the context length of a model directory."""
    return _tokens(model_dir, context_tokens=model_context(model_dir), max_new_tokens=max_new_tokens)


def load_engine_tokens(config: RunConfig, model_dir: Path) -> Tokens:
    """Load the tokenizer of a model directory, with the context of the engine that serves it in a run."""
    context = served_context(config, model_dir)
    return _tokens(model_dir, context_tokens=context, max_new_tokens=config.rollout.max_new_tokens)


def model_context(model_dir: Path) -> int | None:
    """Return the context in tokens that config.json of a model directory states; None if it states none."""
    return context_of(_settings(model_dir))


def _settings(model_dir: Path) -> dict[str, Any]:
    from transformers import AutoConfig

    settings: dict[str, Any] = AutoConfig.from_pretrained(model_dir).to_dict()
    return settings


def _tokens(model_dir: Path, *, context_tokens: int | None, max_new_tokens: int) -> Tokens:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    return Tokens(
        tokenizer,
        context_tokens=context_tokens,
        max_new_tokens=max_new_tokens,
        vocabulary=text_settings(_settings(model_dir)).get("vocab_size"),
    )
