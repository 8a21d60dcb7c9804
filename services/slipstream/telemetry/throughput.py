"""The rate of a counter over the last seconds, which a worker reports with its heartbeats."""

import time
from collections import deque
from collections.abc import Callable
from typing import Final

WINDOW_SECONDS: Final = 30.0
LEAST_SECONDS: Final = 1.0
"""A rate over a shorter time would be noise."""


class Throughput:
    """The mean rate of a counter over the last `window_seconds`, or since the start of the process."""

    def __init__(
        self,
        total: Callable[[], float],
        *,
        window_seconds: float = WINDOW_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`total`: returns the counter, which never falls."""
        self._total = total
        self._window = window_seconds
        self._clock = clock
        self._readings = deque([(clock(), total())])

    def per_second(self) -> float | None:
        """Return the rate; None in the first second, in which there is none."""
        now, total = self._clock(), self._total()
        while len(self._readings) > 1 and now - self._readings[1][0] >= self._window:
            self._readings.popleft()
        start, before = self._readings[0]
        if now - self._readings[-1][0] >= LEAST_SECONDS:
            self._readings.append((now, total))
        return (total - before) / (now - start) if now - start >= LEAST_SECONDS else None
