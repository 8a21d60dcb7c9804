"""Asks a rollout whether it is alive, while an update waits for it.

A process that was stopped, that is cut off, or whose event loop is blocked answers no ping. A rollout whose
engine is slow, or hangs, answers.
"""

import time
from collections.abc import Callable

PINGS = 4
"""Intervals in a row without an answer after which a rollout is silent."""


class Liveness:
    """The pings of one stream.

    Intervals without an answer are counted, so a learner that was stopped or busy, in whose own queues the
    answer may wait, counts one interval and not all of that time.
    """

    def __init__(self, ping: Callable[[int], None] | None) -> None:
        """`ping`: sends a ping of this number, and does not wait; None for a rollout that answers none."""
        self._ping = ping
        self._asked = self._answered = 0
        self._unanswered = 0
        self._interval_ends: float | None = None

    def begin(self) -> None:
        """Let the rollout have the whole time again."""
        self._unanswered = 0
        self._interval_ends = None

    def answered(self, number: int) -> None:
        """Note the answer to a ping."""
        self._answered = number

    @property
    def fell_silent(self) -> bool:
        """Whether PINGS intervals in a row have passed without an answer. Sends no ping."""
        return self._answered != self._asked and self._unanswered >= PINGS

    def silent(self, seconds: float) -> bool:
        """Return whether no ping was answered in this time, which begins with the first call.

        Sends a ping if one is due. To be called at least PINGS times in that time.
        """
        if self._ping is None:
            return False
        now = time.monotonic()
        if self._interval_ends is None or now >= self._interval_ends:
            if self._answered == self._asked:
                self._unanswered = 0
                self._asked += 1
                self._ping(self._asked)
            elif self._interval_ends is not None:
                self._unanswered += 1
            self._interval_ends = now + seconds / PINGS
        return self.fell_silent
