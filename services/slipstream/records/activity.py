"""The state of actors and rollouts (workers, in the wire format), reported by them or seen by replay."""

from dataclasses import dataclass, field
from enum import Enum

from slipstream.records.completion import NO_VERSION
from slipstream.records.ledger import NEVER_PAUSED, Admission, Ledger


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
    throughput: float | None = None
    """Tokens per second of a rollout, completions per second of an actor, by its last heartbeat; None in the
    first second, or if the worker does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The ledger and the state of all actors and rollouts. `oldest_lease_seconds` is 0 without a lease."""

    ledger: Ledger = field(default_factory=Ledger)
    admission_free: int = 0
    admission: Admission = NEVER_PAUSED
    workers: tuple[WorkerActivity, ...] = ()
    oldest_lease_seconds: float = 0.0
    oldest_lease_worker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStatus:
    """What a rollout serves, and how much more it takes."""

    serving_version: int = NO_VERSION
    """Policy version that the engine serves, or served last; NO_VERSION before the first."""
    serving: bool = False
    """Whether it serves a verified version now; false while weights are replaced."""
    places: int = 0
    """Groups that may be sampled at the same time; 0 while it drains."""
    groups_running: int = 0
    """Groups that are being sampled, of all actors."""
    kv_cache_usage: float = 0.0
    """Share of the engine's key-value cache in use, from 0 to 1."""
    draining: bool = False
    """Whether it is about to stop, and takes no further requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRollout:
    """A rollout that takes requests, as it was in its last heartbeat."""

    worker_id: str
    address: str
    """host:port of its service."""
    status: RolloutStatus
