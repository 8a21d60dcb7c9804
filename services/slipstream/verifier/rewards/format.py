"""The reward `format`: whether the whole completion has the configured form, in bounded time.

The text comes from a model, and a pattern can need time exponential in its length. Python's `re` holds the
interpreter lock and cannot be interrupted; the `regex` package releases the lock and stops at a deadline. A
match is first tried in the event loop for MOMENT_SECONDS, which suffices for nearly all texts, and then in a
thread.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import regex  # type: ignore[import-untyped, unused-ignore]

from slipstream.answers.boxed import last_boxed
from slipstream.config.rewards import FormatConfig
from slipstream.records import Outcome, Prompt
from slipstream.verifier.adapters import Concurrently
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Answer, Reward, Verdict, failed, invalid

MAX_CHARACTERS = 65_536
MOMENT_SECONDS = 0.002
MATCH_SECONDS = 0.1
PATIENCE = (1, 2, 4, 8)
"""Factors on the deadline of a match that gets too little CPU time, on a busy machine; one for each try."""
OWN_SHARE = 0.5
"""A match that used this share of its deadline as CPU seconds is late by its own fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The part of the reward that needs no pattern: tags in order, and one \\boxed{}.

    Each check takes time linear in the length of the text.
    """

    tags: tuple[str, ...]
    boxed: bool

    def holds(self, text: str) -> bool:
        """Return whether each tag occurs once, in order and around some text, and the one box closes."""
        return self._tags_hold(text) and (not self.boxed or _one_box(text))

    def _tags_hold(self, text: str) -> bool:
        position = 0
        for tag in self.tags:
            opening, closing = f"<{tag}>", f"</{tag}>"
            start, end = text.find(opening), text.find(closing)
            if text.count(opening) != 1 or text.count(closing) != 1 or start < position:
                return False
            if not text[start + len(opening) : end].strip():  # empty, or the closing tag comes first
                return False
            position = end + len(closing)
        return True


def format_match(config: FormatConfig, resources: Resources) -> Reward:
    """Make the reward. Errors: ValueError if the pattern is no regular expression."""
    overran = partial(resources.metrics.count, "reward_overruns_total", reward=config.name)
    overran(0)
    form = Form(tags=config.tags, boxed=config.boxed)
    return Format(config.pattern or "(?s).*", form=form, overran=overran)


class Format:
    """Scores 1 if the whole completion has the form. One that is too long or too slow to match is invalid."""

    def __init__(self, pattern: str, *, form: Form, overran: Callable[[], None]) -> None:
        """`overran` is called for a match over its deadline. Errors: ValueError for no regular expression."""
        try:
            self._pattern = regex.compile(pattern)
        except (regex.error, MemoryError, RecursionError, OverflowError) as error:
            raise ValueError(f"not a usable regular expression: {error or type(error).__name__}") from error
        self._form = form
        self._overran = overran
        self._concurrently = Concurrently(self._one)

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """Return the verdicts, in order."""
        quick = [self._at_once(answer.text) for answer in answers]
        slow = [answer for answer, verdict in zip(answers, quick, strict=True) if verdict is None]
        if not slow:
            return [verdict for verdict in quick if verdict is not None]
        verdicts = iter(await self._concurrently.score(prompt, slow))
        return [next(verdicts) if verdict is None else verdict for verdict in quick]

    async def close(self) -> None:
        """Do nothing: the reward holds nothing."""

    def _at_once(self, text: str) -> Verdict | None:
        if len(text) > MAX_CHARACTERS:
            return invalid(f"{len(text)} characters; at most {MAX_CHARACTERS} are matched")
        try:
            return Verdict(value=float(self._form.holds(text) and self._matches(text, MOMENT_SECONDS)))
        except TimeoutError:
            return None

    async def _one(self, prompt: Prompt, answer: Answer) -> Verdict:
        verdict = await asyncio.to_thread(self._patiently, answer.text)
        if verdict.outcome is not Outcome.SCORE:
            self._overran()
        return verdict

    def _patiently(self, text: str) -> Verdict:
        for patience in PATIENCE:
            before = time.thread_time()
            try:
                return Verdict(value=float(self._matches(text, patience * MATCH_SECONDS)))
            except TimeoutError:
                if time.thread_time() - before >= OWN_SHARE * MATCH_SECONDS:
                    return invalid(f"the match took longer than {MATCH_SECONDS:g} s")
        return failed(f"no match within {patience * MATCH_SECONDS:g} s on a busy machine")

    def _matches(self, text: str, seconds: float) -> bool:
        return self._pattern.fullmatch(text, timeout=seconds, concurrent=True) is not None


def _one_box(text: str) -> bool:
    boxed = text.replace("\\fbox", "")  # \\fbox{\\boxed{…}} is one box
    return boxed.count("\\boxed{") == 1 and bool((last_boxed(boxed) or "").strip())
