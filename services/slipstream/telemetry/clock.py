"""Moments of the monotonic clock as times of day.

Phases are measured with the monotonic clock, which no correction of the system's time moves.
"""

import time


def epoch_offset() -> float:
    """Return what to add to a moment of `time.monotonic` to get seconds since 1970."""
    return time.time() - time.monotonic()
