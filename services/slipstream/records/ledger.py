"""The ledger: counters of what became of every lease and every group; and whether admission is paused."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The state that the last change left. While `paused`, replay gives out no training leases."""

    paused: bool = False
    seconds: float | None = None
    """Seconds since the last change; None if there was none."""
    since: float | None = None
    """Unix time of the last change, by the clock of Redis; None if there was none."""
    by: str = ""
    """The person or program of the last change, in the words of the caller."""
    reason: str = ""
    """The reason for the last change, in the words of the caller; may be empty."""


NEVER_PAUSED = Admission()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A position in the order of dispatch: the next index, and the lower indices that are not settled yet."""

    dispatched: int = 0
    open: tuple[int, ...] = ()


START = Cursor()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The counters of the two equations of invariant 5. They count groups unless a name says otherwise.

    `skipped` counts prompts that were passed over without a lease; it is in neither equation.
    `retired` counts prompts that were given up because their leases failed too often; it is in neither
    equation, because each of those leases is counted.
    `refills_exhausted` counts groups without variance that were kept; they are also in `inserted`.
    `retrained` counts groups that a step of the current learner trained on although they had been given to
    another step.
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
        """The residual of the equations: 0 unless a group was lost, counted twice or trained on twice."""
        leases = self.leased - self.inserted - self.returned - self.expired - self.running
        settled = self.trained + sum(self.filtered.values()) + sum(self.dropped.values())
        groups = self.inserted - settled - self.buffered - self.in_flight
        return abs(leases) + abs(groups) + self.retrained


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStats:
    """The ledger and the state of admission, read atomically."""

    ledger: Ledger
    version: int
    admission_free: int
    kept: int
    admission: Admission = NEVER_PAUSED
