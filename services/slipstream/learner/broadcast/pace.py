"""Tells a step that stands still from one that is slow, by the longest time of earlier steps of its kind."""

import time

SLOWER = 10.0
"""A step may take this many times as long as the longest one before it, and the patience besides."""


class Pace:
    """The steps of one kind, such as the buckets of a broadcast. Threads may call."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience = patience_seconds
        self._longest: float | None = None
        self._began = 0.0

    def begin(self) -> None:
        """Begin the first of several steps."""
        self._began = time.monotonic()

    def step(self) -> None:
        """End a step, and begin the next one."""
        now = time.monotonic()
        self._longest = max(self._longest or 0.0, now - self._began)
        self._began = now

    def stands_still(self) -> bool:
        """Return whether the present step takes too long. It does not before a first step has ended."""
        if self._longest is None:
            return False
        return time.monotonic() - self._began > self._patience + SLOWER * self._longest
