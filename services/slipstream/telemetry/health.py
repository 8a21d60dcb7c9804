"""Whether a pod is up, alive and ready, as those ask who watch over it."""

import time
from collections.abc import Callable

STALL_SECONDS = 60.0
"""An event loop that has not turned for so long will not turn again."""


class Health:
    """Three questions with different answers: started, live, ready.

    Invariant: a pod that has not started is live, so that a long load is not taken for a hang.
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
        """The pod is up: from now on its loop must turn."""
        self.beat()
        self.started = True

    def beat(self) -> None:
        """The loop turns."""
        self._beat_at = self._clock()

    def ready_while(self, able: Callable[[], bool]) -> None:
        """What a started pod must have besides, to get work."""
        self._able = able

    @property
    def live(self) -> bool:
        """False once the loop of a started pod has stood still for `stall_seconds`."""
        return not self.started or self._clock() - self._beat_at < self._stall_seconds

    @property
    def ready(self) -> bool:
        """Whether the pod may get work now."""
        return self.started and not self._stopping() and self._able()
