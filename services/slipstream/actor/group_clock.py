"""When the phases of one group begin and end in this actor."""

import time
from dataclasses import dataclass, field

from slipstream.records import GroupTimes, RolloutTime
from slipstream.telemetry.clock import epoch_offset


@dataclass(slots=True)
class GroupClock:
    """The moments of a group, in seconds of `time.monotonic`; the lease arrives when the clock is made.

    Invariant: `times` are in the order of the phases, also when the system's time was corrected meanwhile.
    """

    leased: float = field(default_factory=time.monotonic)
    placed: float = 0.0
    sampled: float = 0.0
    scored: float = 0.0
    _rollouts: list[tuple[str, float]] = field(default_factory=list)

    def place_given(self) -> None:
        """Note that the group has a place now."""
        self.placed = time.monotonic()

    def tokens_came(self, rollout: str) -> None:
        """Note that the first tokens of a request came from a rollout now."""
        if not self._rollouts or self._rollouts[-1][0] != rollout:
            self._rollouts.append((rollout, time.monotonic()))

    def all_sampled(self) -> None:
        """Note that all completions are sampled now."""
        self.sampled = time.monotonic()

    def all_scored(self) -> None:
        """Note that all completions are scored now."""
        self.scored = time.monotonic()

    def times(self) -> GroupTimes:
        """Return the times of a group that is inserted now."""
        offset = epoch_offset()
        return GroupTimes(
            leased=self.leased + offset,
            placed=self.placed + offset,
            rollouts=tuple(
                RolloutTime(rollout=name, first_token=moment + offset) for name, moment in self._rollouts
            ),
            sampled=self.sampled + offset,
            scored=self.scored + offset,
            inserted=time.monotonic() + offset,
        )
