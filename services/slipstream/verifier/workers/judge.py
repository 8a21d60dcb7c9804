"""Rewards that compute, judged in the pool's children: of one answer at a time, or of a whole group."""

from collections.abc import Sequence
from typing import Any, Literal

from slipstream.records import Prompt
from slipstream.verifier.adapters import Concurrently
from slipstream.verifier.cache import Memory
from slipstream.verifier.reward import Answer, Verdict, failed, invalid
from slipstream.verifier.surroundings import Surroundings
from slipstream.verifier.workers.worker import Overrun


class InWorkers:
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
        surroundings: Surroundings,
        arguments: dict[str, Any] | None = None,
        overrun: Literal["invalid", "error"] = "invalid",
    ) -> None:
        self._function = function
        self._name = name
        self._seconds = seconds
        self._surroundings = surroundings
        self._arguments = arguments or {}
        self._overrun = overrun
        surroundings.workers.prepare(function)
        surroundings.metrics.count("reward_overruns_total", 0, reward=name)

    def each(self, *, memory: Memory | None = None) -> Concurrently:
        """A reward that calls function(prompt, answer, **arguments), the answers spread over the children."""
        return Concurrently(self.one, memory=memory)

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """As a reward itself it calls function(prompt, answers, **arguments), once a group."""
        return await self._ask(prompt, answers, group=True)

    async def close(self) -> None:
        """The children belong to the surroundings."""

    async def one(self, prompt: Prompt, answer: Answer) -> Verdict:
        """function(prompt, answer, **arguments) of one answer. Errors: of `Workers.judge`, but Overrun."""
        (verdict,) = await self._ask(prompt, [answer], group=False)
        return verdict

    async def _ask(self, prompt: Prompt, answers: Sequence[Answer], *, group: bool) -> list[Verdict]:
        try:
            return await self._surroundings.workers.judge(
                self._function, self._arguments, prompt, answers, seconds=self._seconds, group=group
            )
        except Overrun as error:
            self._surroundings.metrics.count("reward_overruns_total", reward=self._name)
            verdict = invalid if self._overrun == "invalid" else failed
            return [verdict(str(error)) for _ in answers]
