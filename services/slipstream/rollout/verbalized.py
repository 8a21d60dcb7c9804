"""How prompts are asked: as they stand, or by verbalized sampling, several candidates in one generation.

    plain        the prompt                        a generation is one answer
    Verbalized   the prompt and the instruction    one candidate of a generation, drawn, is judged
    Candidates   the prompt and the instruction    each candidate is an answer to the prompt

The tokens of a candidate were sampled behind the instruction and behind the candidates before it, so their
logprobs are not those of an answer to the prompt, and no ratio can be formed from them. Reinforcement
learning therefore asks by `Verbalized`: it trains the whole generation behind the prompt with its
instruction, with the logprobs that it was sampled with, and drawing a candidate belongs to the reward.
Stages that sample and then train from tokens alone, without the rollout's logprobs, ask by `Candidates`.

See Verbalized Sampling: How to Mitigate Mode Collapse and Unlock LLM Diversity, arXiv:2510.01171.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from slipstream.prompts.verbalized import ask, choose, is_open, parse
from slipstream.records import Completion, FinishReason, Prompt, VersionSpan
from slipstream.tokens import Tokens


class Client(Protocol):
    """What the policy is asked, and what of its generations is judged and trained on."""

    def ask(self, prompt: Prompt) -> Prompt:
        """The prompt as the policy sees it."""

    def generations(self, completions: int) -> int:
        """How many generations a group of so many completions takes."""

    def behind(self, prompt: Prompt) -> Prompt:
        """The prompt that the completions of the group follow."""

    def answers(self, prompt: Prompt, generation: Completion) -> Sequence[Completion]:
        """The completions of a generation, whose text is the decoded one; theirs is what is judged."""


class Plain:
    """The prompt as it stands; the whole text is the answer."""

    def ask(self, prompt: Prompt) -> Prompt:
        """See Client."""
        return prompt

    def generations(self, completions: int) -> int:
        """See Client."""
        return completions

    def behind(self, prompt: Prompt) -> Prompt:
        """See Client."""
        return prompt

    def answers(self, prompt: Prompt, generation: Completion) -> Sequence[Completion]:
        """See Client."""
        return (generation,)


class Verbalized:
    """Asks for several candidates at once and judges one of them, drawn by its stated probability.

    Invariant: tokens, logprobs, mask and spans are those of the whole generation, behind the prompt that was
    asked. Their policy gradient is that of the expected reward of a drawn candidate.
    """

    def __init__(self, *, candidates: int, draw: Callable[[], float]) -> None:
        """`draw` gives numbers in [0, 1)."""
        _check(candidates)
        self._candidates = candidates
        self._draw = draw

    def ask(self, prompt: Prompt) -> Prompt:
        """See Client."""
        return ask(prompt, self._candidates)

    def generations(self, completions: int) -> int:
        """See Client."""
        return completions

    def behind(self, prompt: Prompt) -> Prompt:
        """See Client."""
        return self.ask(prompt)

    def answers(self, prompt: Prompt, generation: Completion) -> Sequence[Completion]:
        """See Client."""
        return (replace(generation, text=choose(parse(generation.text), self._draw()).text),)


class Candidates:
    """Asks for several candidates at once, and makes each of them an answer to the prompt.

    Invariant: the tokens of an answer are its text as a demonstration has it, end of sequence included.
    Nobody sampled them behind this prompt, so their logprobs are 0 and mean nothing: they are for training
    that reads none.
    """

    def __init__(self, *, candidates: int, tokens: Tokens) -> None:
        _check(candidates)
        self._candidates = candidates
        self._tokens = tokens

    def ask(self, prompt: Prompt) -> Prompt:
        """See Client."""
        return ask(prompt, self._candidates)

    def generations(self, completions: int) -> int:
        """See Client."""
        return -(-completions // self._candidates)

    def behind(self, prompt: Prompt) -> Prompt:
        """See Client."""
        return prompt

    def answers(self, prompt: Prompt, generation: Completion) -> Sequence[Completion]:
        """See Client; at most as many as were asked for. The last one was cut off if the generation was."""
        texts = [candidate.text for candidate in parse(generation.text)]
        ends = [FinishReason.STOP] * len(texts)
        if is_open(generation.text):
            ends[-1] = generation.finish_reason
        version = max((span.version for span in generation.spans), default=0)
        return [
            self._answer(text, end, prompt=prompt, version=version)
            for text, end in zip(texts[: self._candidates], ends, strict=False)
        ]

    def _answer(self, text: str, end: FinishReason, *, prompt: Prompt, version: int) -> Completion:
        ids = self._tokens.encode_answer(text, prompt=prompt)
        return Completion(
            token_ids=ids,
            logprobs=(0.0,) * len(ids),
            mask=(1,) * len(ids),
            spans=(VersionSpan(version=version, start=0, end=len(ids)),) if ids else (),
            finish_reason=end,
            text=text,
        )


def _check(candidates: int) -> None:
    if candidates < 2:
        raise ValueError(f"candidates: got {candidates}, needs at least 2")
