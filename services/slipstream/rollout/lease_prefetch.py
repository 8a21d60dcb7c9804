"""How many leases to ask for ahead of need, so that a place never waits for replay's answer."""

import time
from collections import deque
from collections.abc import Callable

REMEMBERED = 32


class LeasePrefetch:
    """As many groups as are finished, at the pace of late, while a question to replay is under way."""

    def __init__(self, *, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._finished: deque[float] = deque(maxlen=REMEMBERED)

    def finished(self) -> None:
        """A group was finished now."""
        self._finished.append(self._clock())

    def groups(self, round_trip_seconds: float) -> int:
        """Leases to hold beyond the places, at most `most`; 0 where an answer takes next to no time."""
        if len(self._finished) < 2:
            return 0
        seconds = max(self._clock() - self._finished[0], 1e-3)
        pace = len(self._finished) / seconds
        return min(self._most, round(pace * round_trip_seconds))
