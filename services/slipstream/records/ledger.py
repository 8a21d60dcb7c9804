"""The ledger: counters of what became of every lease and every group."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A position in the order of dispatch: the next index, and those below it that are not settled yet."""

    dispatched: int = 0
    open: tuple[int, ...] = ()


START = Cursor()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The counters of invariant 5. Groups, unless the name says tokens or completions.

    `skipped` counts prompts that were passed over before anybody got their lease: in neither equation.
    `retired` counts prompts whose lease ended by a fault too often: in neither, as each lease is counted.
    `refills_exhausted` counts groups without variance that were kept all the same: part of `inserted`.
    `retrained` counts groups that a step of the current learner trained on without holding them: another step
    has trained on them, or will.
    """

    leased: int = 0
    inserted: int = 0
    returned: int = 0
    expired: int = 0
    running: int = 0
    trained: int = 0
    filtered: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    buffered: int = 0
    in_flight: int = 0
    tokens_inserted: int = 0
    tokens_trained: int = 0
    fenced: int = 0
    duplicates: int = 0
    withheld: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    refills_exhausted: int = 0
    retrained: int = 0
    retired: Mapping[str, int] = field(default_factory=dict)

    @property
    def residual(self) -> int:
        """What does not add up: 0, or a group was lost, counted twice or trained on twice."""
        leases = self.leased - self.inserted - self.returned - self.expired - self.running
        settled = self.trained + sum(self.filtered.values()) + sum(self.dropped.values())
        groups = self.inserted - settled - self.buffered - self.in_flight
        return abs(leases) + abs(groups) + self.retrained


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStats:
    """The ledger with the admission state, read in one atomic step."""

    ledger: Ledger
    version: int
    admission_free: int
    kept: int
