"""Extract the answer from a completion, for another reward to score."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import regex  # type: ignore[import-untyped, unused-ignore]

from slipstream.answers.boxed import last_boxed
from slipstream.config.problem import Invalid
from slipstream.config.rewards.answers import AnswerSection
from slipstream.records import Outcome, Prompt
from slipstream.verifier.reward import Answer, Reward, Verdict, failed, invalid

MAX_CHARACTERS = 1_048_576
MAX_MATCHED_CHARACTERS = 65_536
SEARCH_SECONDS = 0.1
PATIENCE = 8
"""Factor on the deadline of a search that gets too little CPU time, on a busy machine."""
OWN_SHARE = 0.5
"""A search that used this share of its deadline as CPU seconds is late by its own fault."""

Extract = Callable[[str], str | None]
Truth = Callable[[Prompt], object]
"""Reads the ground truth of a prompt. Errors: UnusableGroundTruth."""


def extracting(config: AnswerSection, inner: Reward, *, truth: Truth) -> Reward:
    """Return a reward that extracts the answers as configured, and scores them by `inner`.

    It reads the ground truth with `truth` first, so that a prompt without one is refused even if no answer
    can be extracted.
    Errors: ValueError for a bad pattern.
    """
    if config.extract == "whole":
        return inner
    if config.extract_pattern is not None:
        return Extracting(
            inner,
            last_match(config.extract_pattern),
            truth=truth,
            missing="no match of the pattern",
            slow=True,
        )
    if config.extract == "boxed":
        return Extracting(inner, last_boxed, truth=truth, missing="no \\boxed{} that closes")
    return Extracting(inner, last_tag, truth=truth, missing="no <answer></answer>")


class Extracting:
    """Scores the extracted answers by another reward. A completion without an answer is invalid."""

    def __init__(
        self, inner: Reward, extract: Extract, *, truth: Truth, missing: str, slow: bool = False
    ) -> None:
        self._inner = inner
        self._truth = truth
        self._extract = extract
        self._missing = missing
        self._slow = slow

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """Return the verdicts, in order. Errors: UnusableGroundTruth."""
        self._truth(prompt)
        parts = list(await asyncio.gather(*map(self._extracted, answers)))
        extracted = [part for part in parts if isinstance(part, Answer)]
        verdicts = iter(await self._inner.score(prompt, extracted))
        return [
            part if isinstance(part, Verdict) else replace(next(verdicts), answer=part.text) for part in parts
        ]

    async def close(self) -> None:
        """Close the inner reward."""
        await self._inner.close()

    async def _extracted(self, answer: Answer) -> Answer | Verdict:
        """Return the part of an answer to score, or the verdict on an answer without that part."""
        if len(answer.text) > (MAX_MATCHED_CHARACTERS if self._slow else MAX_CHARACTERS):
            return invalid(f"{len(answer.text)} characters are too long to look for an answer in")
        try:
            if self._slow:
                text = await asyncio.to_thread(self._extract, answer.text)
            else:
                text = self._extract(answer.text)
        except _Late as late:
            return late.verdict
        return invalid(self._missing) if text is None else replace(answer, text=text)


class _Late(Exception):
    """A search exceeded its deadline."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.detail)
        assert verdict.outcome is not Outcome.SCORE
        self.verdict = verdict


def last_tag(text: str) -> str | None:
    """Return the text between the last </answer> and the <answer> before it; None if there is none."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, end) if end >= 0 else -1
    return text[start + len("<answer>") : end] if start >= 0 else None


def last_match(pattern: str) -> Extract:
    """Return a search for the last match. Errors: Invalid if the pattern is no regular expression."""
    try:
        compiled = regex.compile(pattern)
    except (regex.error, MemoryError, RecursionError, OverflowError) as error:
        reason = f"not a usable regular expression: {error or type(error).__name__}"
        raise Invalid(reason, key="extract_pattern") from error

    def search(text: str) -> str | None:
        before = time.thread_time()
        try:
            last = None
            for match in compiled.finditer(text, timeout=PATIENCE * SEARCH_SECONDS, concurrent=True):
                last = match
                if time.thread_time() - before > SEARCH_SECONDS:
                    raise _Late(invalid(f"the search took longer than {SEARCH_SECONDS:g} s"))
        except TimeoutError:
            own = time.thread_time() - before >= OWN_SHARE * SEARCH_SECONDS
            raise _Late((invalid if own else failed)("the search for an answer took too long")) from None
        if last is None:
            return None
        return str(last.group(1) or "") if compiled.groups else str(last.group())

    return search
