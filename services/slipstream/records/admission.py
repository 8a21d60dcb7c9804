"""Whether an operator has paused admission."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The state that the last change left: while `paused`, replay gives out no training leases."""

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
