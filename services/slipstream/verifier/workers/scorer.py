"""A reward by a function that runs in the pool's children."""

from collections.abc import Sequence
from typing import Any, Literal

from slipstream.records import Prompt
from slipstream.verifier.adapters import Concurrently
from slipstream.verifier.cache import RewardCache
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Answer, Verdict, failed, invalid
from slipstream.verifier.workers.worker import Overrun


class PoolScorer:
    """Calls a function, named `module:function`, with its arguments in a child, under a deadline.

    An answer that exceeds the deadline, the memory or the stack by its own fault is invalid. As an error it
    would be tried again, and exceed the limit again. With `overrun="error"` it is an error nevertheless: the
    function itself may be slow.
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
        """Return a reward that calls function(prompt, answer, **arguments), spread over the children."""
        return Concurrently(self.one, cache=cache)

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """Return the verdicts of one call of function(prompt, answers, **arguments) for the whole group."""
        return await self._ask(prompt, answers, group=True)

    async def close(self) -> None:
        """Do nothing: `Resources.close` ends the children."""

    async def one(self, prompt: Prompt, answer: Answer) -> Verdict:
        """Return the verdict on one answer. Errors: those of `Workers.call`, except Overrun."""
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
