"""Take the answer out of a completion, and have another reward judge it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import regex  # type: ignore[import-untyped, unused-ignore]

from slipstream.answers.boxed import last_boxed
from slipstream.config.rewards.answers import AnswerSection
from slipstream.records import Outcome, Prompt
from slipstream.verifier.reward import Answer, Reward, Verdict, failed, invalid

MAX_CHARACTERS = 1_048_576
MAX_MATCHED_CHARACTERS = 65_536
SEARCH_SECONDS = 0.1
PATIENCE = 8
"""Times as long that a search may take which gets too little of a core."""
OWN_SHARE = 0.5

Extract = Callable[[str], str | None]
Truth = Callable[[Prompt], object]
"""Reads the ground truth of a prompt. Errors: UnusableGroundTruth."""


def extracting(config: AnswerSection, inner: Reward, *, truth: Truth) -> Reward:
    """`inner`, asked about the part that the configuration names. Errors: ValueError for a bad pattern.

    `truth` is read first: a prompt without one is no answer's fault, also where no answer has that part.
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
    """A reward of the answers that are found; a completion without one is invalid."""

    def __init__(
        self, inner: Reward, extract: Extract, *, truth: Truth, missing: str, slow: bool = False
    ) -> None:
        self._inner = inner
        self._truth = truth
        self._extract = extract
        self._missing = missing
        self._slow = slow

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """The verdicts, in order. Errors: UnusableGroundTruth."""
        self._truth(prompt)
        found = list(await asyncio.gather(*map(self._found, answers)))
        rest = [answer for answer in found if isinstance(answer, Answer)]
        verdicts = iter(await self._inner.score(prompt, rest))
        return [
            one if isinstance(one, Verdict) else replace(next(verdicts), answer=one.text) for one in found
        ]

    async def close(self) -> None:
        """Close the reward inside."""
        await self._inner.close()

    async def _found(self, answer: Answer) -> Answer | Verdict:
        """The part of an answer to judge, or why there is none."""
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
    """A search was given up."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.detail)
        assert verdict.outcome is not Outcome.SCORE
        self.verdict = verdict


def last_tag(text: str) -> str | None:
    """What stands in the last <answer></answer>, which may hold no other; None without one."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, end) if end >= 0 else -1
    return text[start + len("<answer>") : end] if start >= 0 else None


def last_match(pattern: str) -> Extract:
    """A search for the last match. Errors: ValueError for no regular expression."""
    try:
        compiled = regex.compile(pattern)
    except (regex.error, MemoryError, RecursionError, OverflowError) as error:
        raise ValueError(
            f"extract_pattern: not a usable regular expression: {error or type(error).__name__}"
        ) from error

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
