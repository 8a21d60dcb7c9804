"""Rewards that compute, judged in the pool's children: of one answer at a time, or of a whole group."""

from collections.abc import Sequence
from typing import Any, Literal

from slipstream.records import Prompt
from slipstream.verifier.adapters import Concurrently
from slipstream.verifier.cache import RewardCache
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Answer, Verdict, failed, invalid
from slipstream.verifier.workers.worker import Overrun


class PoolScorer:
    """A function by name, `module:function`, and its arguments, called in a child under a deadline.

    An answer over the deadline, the memory or the stack by its own fault is an invalid one: it would be so
    again, so to call it an error would have it tried for ever. `overrun="error"` is for a function that may
    be slow for reasons of its own.
    """

    def __init__(
        self,
        function: str,
        *,
        name: str,
        seconds: float,
        resources: Resources,
        arguments: dict[str, Any] | None = None,
        overrun: Literal["invalid", "error"] = "invalid",
    ) -> None:
        self._function = function
        self._name = name
        self._seconds = seconds
        self._resources = resources
        self._arguments = arguments or {}
        self._overrun = overrun
        resources.workers.prepare(function)
        resources.metrics.count("reward_overruns_total", 0, reward=name)

    def each(self, *, cache: RewardCache | None = None) -> Concurrently:
        """A reward that calls function(prompt, answer, **arguments), the answers spread over the children."""
        return Concurrently(self.one, cache=cache)

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """As a reward itself it calls function(prompt, answers, **arguments), once a group."""
        return await self._ask(prompt, answers, group=True)

    async def close(self) -> None:
        """The children belong to the resources."""

    async def one(self, prompt: Prompt, answer: Answer) -> Verdict:
        """function(prompt, answer, **arguments) of one answer. Errors: of `Workers.call`, but Overrun."""
        (verdict,) = await self._ask(prompt, [answer], group=False)
        return verdict

    async def _ask(self, prompt: Prompt, answers: Sequence[Answer], *, group: bool) -> list[Verdict]:
        try:
            return await self._resources.workers.call(
                self._function, self._arguments, prompt, answers, seconds=self._seconds, group=group
            )
        except Overrun as error:
            self._resources.metrics.count("reward_overruns_total", reward=self._name)
            verdict = invalid if self._overrun == "invalid" else failed
            return [verdict(str(error)) for _ in answers]
