"""Rewards of a group, made of functions that score one answer."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from slipstream.records import Outcome, Prompt
from slipstream.verifier.cache import RewardCache
from slipstream.verifier.reward import Answer, RewardFunction, UnusableGroundTruth, Verdict, describe, failed

ScoreOne = Callable[[Prompt, Answer], Awaitable[Verdict]]
"""Scores one answer by itself, and waits for a child process or a service."""


class EachAnswer:
    """A reward by a cheap, pure function of one answer, which is called in the event loop."""

    def __init__(self, function: RewardFunction) -> None:
        self._function = function

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """Return the verdicts, in order. Errors: UnusableGroundTruth."""
        return [self._one(prompt, answer) for answer in answers]

    async def close(self) -> None:
        """Do nothing: the reward holds nothing."""

    def _one(self, prompt: Prompt, answer: Answer) -> Verdict:
        try:
            return self._function(prompt, answer)
        except UnusableGroundTruth:
            raise
        except Exception as error:
            return failed(describe(error))


class Concurrently:
    """A reward by a function that waits, called for all answers of a group at the same time.

    Invariant: with a cache, equal answers to a prompt are scored once, except after errors. A verdict that is
    being computed when its caller gives up is computed further and cached, so that the next try finds it.
    """

    def __init__(self, score_one: ScoreOne, *, cache: RewardCache | None = None) -> None:
        self._score_one = score_one
        self._cache = cache
        self._running: dict[bytes, asyncio.Task[Verdict]] = {}

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """Return the verdicts, in order. Errors: UnusableGroundTruth."""
        if self._cache is None:
            calls = [self._guarded(prompt, answer) for answer in answers]
        else:
            calls = [self._through_cache(self._cache, prompt, answer) for answer in answers]
        return list(await asyncio.gather(*calls))

    async def close(self) -> None:
        """Cancel the verdicts whose callers gave up."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _through_cache(self, cache: RewardCache, prompt: Prompt, answer: Answer) -> Verdict:
        key = cache.key(prompt, answer)
        cached = cache.get(key)
        if cached is not None:
            return cached
        task = self._running.get(key)
        if task is not None:
            try:
                return await _shielded(task, cache)
            except UnusableGroundTruth:
                # The error names the prompt of the running call: another prompt with the same ground truth.
                return await self._guarded(prompt, answer)
        task = asyncio.create_task(self._scored_and_cached(cache, key, prompt, answer))
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key, None))
        return await _shielded(task, cache)

    async def _scored_and_cached(
        self, cache: RewardCache, key: bytes, prompt: Prompt, answer: Answer
    ) -> Verdict:
        verdict = await self._guarded(prompt, answer)
        if verdict.outcome is not Outcome.ERROR:
            cache.put(key, verdict)
        return verdict

    async def _guarded(self, prompt: Prompt, answer: Answer) -> Verdict:
        try:
            return await self._score_one(prompt, answer)
        except UnusableGroundTruth:
            raise
        except Exception as error:
            return failed(describe(error))


async def _shielded(task: asyncio.Task[Verdict], cache: RewardCache) -> Verdict:
    """Return the verdict of a task, which goes on if the caller is cancelled."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        cache.hold_until_done(task)
        raise
