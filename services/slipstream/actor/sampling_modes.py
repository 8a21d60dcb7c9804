"""The modes of `rollout.sampling`: prompts as they stand, or verbalized sampling with several candidates.

    PlainSampling       samples the prompt; each generation is one answer
    VerbalizedSampling  samples the prompt with an instruction; one candidate, drawn by its stated
                        probability, is scored
    CandidateSampling   samples the prompt with an instruction; each candidate becomes an answer to the prompt

The policy samples a candidate after the instruction and after the candidates before it. Its logprobs are
therefore not those of an answer to the bare prompt, and no importance ratio can be formed from them.
Reinforcement learning uses VerbalizedSampling: it trains the whole generation, after the prompt with its
instruction, with the logprobs of the engine. The random draw counts as part of the reward function. Stages
that sample and then train without rollout logprobs use CandidateSampling.

See Verbalized Sampling: How to Mitigate Mode Collapse and Unlock LLM Diversity, arXiv:2510.01171.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from slipstream.prompts.verbalized import ask, choose, is_open, parse
from slipstream.records import Completion, FinishReason, Prompt, VersionSpan
from slipstream.tokens import Tokens


class SamplingMode(Protocol):
    """Which prompt the policy samples from, and which completions its generations become."""

    def sampled_prompt(self, prompt: Prompt) -> Prompt:
        """Return the prompt that the engine continues."""

    def generations(self, completions: int) -> int:
        """Return the number of generations that a group of `completions` completions needs."""

    def trained_prompt(self, prompt: Prompt) -> Prompt:
        """Return the prompt that the completions of the group are stored and trained with."""

    def completions(self, prompt: Prompt, generation: Completion) -> Sequence[Completion]:
        """Return the completions of a generation. `generation.text` is its decoded tokens; the text of each
        returned completion is what the rewards score."""


class PlainSampling:
    """Samples the prompt as it stands; the whole generation is the answer."""

    def sampled_prompt(self, prompt: Prompt) -> Prompt:
        """See SamplingMode."""
        return prompt

    def generations(self, completions: int) -> int:
        """See SamplingMode."""
        return completions

    def trained_prompt(self, prompt: Prompt) -> Prompt:
        """See SamplingMode."""
        return prompt

    def completions(self, prompt: Prompt, generation: Completion) -> Sequence[Completion]:
        """See SamplingMode."""
        return (generation,)


class VerbalizedSampling:
    """Asks for several candidates in one generation; one of them, drawn by its stated probability, is scored.

    Invariant: tokens, logprobs, mask and spans are those of the whole generation, after the prompt with the
    instruction. Their policy gradient is that of the expected reward of a drawn candidate.
    """

    def __init__(self, *, candidates: int, draw: Callable[[], float]) -> None:
        """`draw` returns random numbers in [0, 1). Errors: ValueError for fewer than 2 candidates."""
        _check(candidates)
        self._candidates = candidates
        self._draw = draw

    def sampled_prompt(self, prompt: Prompt) -> Prompt:
        """See SamplingMode."""
        return ask(prompt, self._candidates)

    def generations(self, completions: int) -> int:
        """See SamplingMode."""
        return completions

    def trained_prompt(self, prompt: Prompt) -> Prompt:
        """See SamplingMode."""
        return self.sampled_prompt(prompt)

    def completions(self, prompt: Prompt, generation: Completion) -> Sequence[Completion]:
        """See SamplingMode."""
        return (replace(generation, text=choose(parse(generation.text), self._draw()).text),)


class CandidateSampling:
    """Asks for several candidates in one generation, and makes each of them an answer to the bare prompt.

    Invariant: the tokens of an answer are its text, encoded as a demonstration is, end of sequence included.
    No policy sampled them after the bare prompt, so their logprobs are 0 and carry no information. Only
    training that reads no rollout logprobs may use them.
    """

    def __init__(self, *, candidates: int, tokens: Tokens) -> None:
        """Errors: ValueError for fewer than 2 candidates."""
        _check(candidates)
        self._candidates = candidates
        self._tokens = tokens

    def sampled_prompt(self, prompt: Prompt) -> Prompt:
        """See SamplingMode."""
        return ask(prompt, self._candidates)

    def generations(self, completions: int) -> int:
        """See SamplingMode."""
        return -(-completions // self._candidates)

    def trained_prompt(self, prompt: Prompt) -> Prompt:
        """See SamplingMode."""
        return prompt

    def completions(self, prompt: Prompt, generation: Completion) -> Sequence[Completion]:
        """See SamplingMode; returns at most `candidates` completions.

        If the generation was cut off inside its last candidate, only that candidate has its finish reason.
        """
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
