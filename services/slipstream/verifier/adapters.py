"""From a judge of one answer to a Reward of a group."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from slipstream.records import Outcome, Prompt
from slipstream.verifier.cache import RewardCache
from slipstream.verifier.reward import Answer, RewardFunction, UnusableGroundTruth, Verdict, describe, failed

ScoreOne = Callable[[Prompt, Answer], Awaitable[Verdict]]
"""A judge of one answer by itself that has to wait: for a child process, for a service."""


class EachAnswer:
    """A cheap pure function of one answer, called at once: to hand it on would cost more than it does."""

    def __init__(self, function: RewardFunction) -> None:
        self._function = function

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """The verdicts, in order. Errors: UnusableGroundTruth."""
        return [self._one(prompt, answer) for answer in answers]

    async def close(self) -> None:
        """Nothing is held."""

    def _one(self, prompt: Prompt, answer: Answer) -> Verdict:
        try:
            return self._function(prompt, answer)
        except UnusableGroundTruth:
            raise
        except Exception as error:
            return failed(describe(error))


class Concurrently:
    """A judge that has to wait, asked about all answers of a group at the same time.

    Invariant: with a memory, equal answers to a prompt are judged once, errors aside, and a verdict that was
    under way when the caller gave up is remembered for its next try.
    """

    def __init__(self, score_one: ScoreOne, *, cache: RewardCache | None = None) -> None:
        self._score_one = score_one
        self._cache = cache
        self._running: dict[bytes, asyncio.Task[Verdict]] = {}

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """The verdicts, in order. Errors: UnusableGroundTruth."""
        one = self._guarded if self._cache is None else self._remembered
        return list(await asyncio.gather(*(one(prompt, answer) for answer in answers)))

    async def close(self) -> None:
        """End what is under way for nobody."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _remembered(self, prompt: Prompt, answer: Answer) -> Verdict:
        assert self._cache is not None
        key = self._cache.key(prompt, answer)
        known = self._cache.get(key)
        if known is not None:
            return known
        task = self._running.get(key)
        if task is not None:
            try:
                return await self._awaited(task)
            except UnusableGroundTruth:  # which names the prompt of another, that has the same truth
                return await self._guarded(prompt, answer)
        task = asyncio.create_task(self._scored_and_cached(key, prompt, answer))
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key, None))
        return await self._awaited(task)

    async def _awaited(self, task: asyncio.Task[Verdict]) -> Verdict:
        """A verdict that is under way, and goes on when the caller gives up."""
        assert self._cache is not None
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._cache.hold_until_done(task)
            raise

    async def _scored_and_cached(self, key: bytes, prompt: Prompt, answer: Answer) -> Verdict:
        assert self._cache is not None
        verdict = await self._guarded(prompt, answer)
        if verdict.outcome is not Outcome.ERROR:
            self._cache.put(key, verdict)
        return verdict

    async def _guarded(self, prompt: Prompt, answer: Answer) -> Verdict:
        try:
            return await self._score_one(prompt, answer)
        except UnusableGroundTruth:
            raise
        except Exception as error:
            return failed(describe(error))
