"""Log events about rewards: rewards that failed, and groups without variance, from which nothing is learned.

The launcher shows these events on its console (cli/launch/run_warnings.py).
"""

import time
from collections.abc import Callable, Mapping, Sequence

from slipstream.actor.verifier_client import Scorer
from slipstream.records import Completion, Outcome, Prompt, Reward
from slipstream.telemetry.logs import Log

QUIET_SECONDS = 10.0
"""Shortest time between two events of the same kind."""
SHOWN_CHARACTERS = 200


class RewardLog:
    """Scores by `scorer`, and logs failed rewards and groups whose answers all have the same reward."""

    def __init__(
        self,
        scorer: Scorer,
        weights: Mapping[str, float],
        *,
        log: Log,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scorer = scorer
        self._weights = weights
        self._log = log
        self._clock = clock
        self._quiet_until: dict[str, float] = {}

    async def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Completion]:
        """Return the completions with their reward vectors, in order. Errors: those of `scorer`."""
        scored = await self._scorer.score(prompt, completions)
        for reward in _failed(scored):
            if self._is_due(f"failed {reward.name}"):
                self._log.warning(
                    "reward failed", prompt=prompt.prompt_id, reward=reward.name, detail=reward.detail
                )
        with_score = [completion for completion in scored if not completion.withheld]
        if self._are_unvaried(with_score) and self._is_due("unvaried"):
            self._log.info(
                "group without variance",
                prompt=prompt.prompt_id,
                truth=prompt.answer[:SHOWN_CHARACTERS],
                answers=len(with_score),
                answer=with_score[0].text[:SHOWN_CHARACTERS],
                rewards=", ".join(f"{reward.name} {reward.value:g}" for reward in with_score[0].rewards),
            )
        return scored

    def _are_unvaried(self, completions: Sequence[Completion]) -> bool:
        """Return whether there are two completions or more, all with the same weighted reward."""
        return len(completions) > 1 and len({self._total(completion) for completion in completions}) == 1

    def _total(self, completion: Completion) -> float:
        return sum(self._weights.get(reward.name, 0.0) * reward.value for reward in completion.rewards)

    def _is_due(self, kind: str) -> bool:
        if self._clock() < self._quiet_until.get(kind, 0.0):
            return False
        self._quiet_until[kind] = self._clock() + QUIET_SECONDS
        return True


def _failed(scored: Sequence[Completion]) -> list[Reward]:
    """Return the first failure of each reward."""
    first: dict[str, Reward] = {}
    for completion in scored:
        for reward in completion.rewards:
            if reward.outcome is Outcome.ERROR:
                first.setdefault(reward.name, reward)
    return list(first.values())
