"""The state of the actors and rollouts (workers, in the wire format), as replay sees it."""

from dataclasses import dataclass, field
from enum import Enum

from slipstream.records.admission import NEVER_PAUSED, Admission
from slipstream.records.ledger import Ledger


class WorkerKind(Enum):
    """The kind of a pod that reports to replay."""

    ACTOR = "actor"
    ROLLOUT = "rollout"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerActivity:
    """The state of one actor or rollout, from its heartbeats and its requests for leases."""

    worker_id: str
    kind: WorkerKind
    silent_seconds: float
    """Seconds since its last message."""
    serving_version: int
    """Policy version that a rollout serves, or that an actor samples from; -1 before the first."""
    leases: int
    scoring_failure: str = ""
    """The first failure to score one of its completions; empty without a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The ledger and the state of all actors and rollouts. `oldest_lease_seconds` is 0 without a lease."""

    ledger: Ledger = field(default_factory=Ledger)
    admission_free: int = 0
    admission: Admission = NEVER_PAUSED
    workers: tuple[WorkerActivity, ...] = ()
    oldest_lease_seconds: float = 0.0
    oldest_lease_worker: str = ""
