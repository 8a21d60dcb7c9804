"""The state of the workers, as replay sees it."""

from dataclasses import dataclass, field

from slipstream.records.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerActivity:
    """What replay knows of one worker, from its heartbeats and its requests for leases."""

    worker_id: str
    silent_seconds: float
    """Since it was last heard from."""
    serving_version: int
    """-1 for none."""
    leases: int
    scoring_failure: str = ""
    """What first kept one of its completions from being scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What the workers are doing, beside the ledger; the oldest lease is 0 s old when none is running."""

    ledger: Ledger = field(default_factory=Ledger)
    admission_free: int = 0
    workers: tuple[WorkerActivity, ...] = ()
    oldest_lease_seconds: float = 0.0
    oldest_lease_worker: str = ""
