"""The health of a pod, as Kubernetes probes ask for it: started, live, ready."""

import time
from collections.abc import Callable

STALL_SECONDS = 60.0
"""Time without a heartbeat after which the event loop counts as hung."""


class Health:
    """The answers to the three probes.

    Invariant: a pod that has not started is live, so that the loading of a large model is not taken for a
    hang.
    """

    def __init__(
        self,
        *,
        stopping: Callable[[], bool] = lambda: False,
        stall_seconds: float = STALL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stopping = stopping
        self._stall_seconds = stall_seconds
        self._clock = clock
        self._beat_at = clock()
        self._able: Callable[[], bool] = lambda: True
        self.started = False

    def start(self) -> None:
        """Mark the pod as started: from now on `live` needs heartbeats."""
        self.beat()
        self.started = True

    def beat(self) -> None:
        """Record a heartbeat of the event loop."""
        self._beat_at = self._clock()

    def ready_while(self, able: Callable[[], bool]) -> None:
        """Set a further condition of `ready`."""
        self._able = able

    @property
    def live(self) -> bool:
        """Whether the last heartbeat of a started pod is less than `stall_seconds` old."""
        return not self.started or self._clock() - self._beat_at < self._stall_seconds

    @property
    def ready(self) -> bool:
        """Whether the pod accepts work: it has started, does not stop, and is able."""
        return self.started and not self._stopping() and self._able()
