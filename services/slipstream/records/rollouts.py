"""The state of the inference servers, as they report it."""

from dataclasses import dataclass

NO_VERSION = -1
"""The version of a rollout that has not served any."""


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
