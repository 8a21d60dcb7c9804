"""The places of a rollout, which follow how full the engine's key-value cache is.

Additive increase, multiplicative decrease, as in prime-rl: while all places are taken and the cache has room,
there is one place more after each second; when the engine had to preempt requests, because their cache did
not fit, there is a share less. A preempted request is computed again from its first token, so a rollout with
too many places samples fewer tokens, not more.
"""

import time
from collections.abc import Callable

INCREASE_SECONDS = 1.0
"""Time between two increases."""
SETTLE_SECONDS = 5.0
"""Time after a decrease in which nothing changes: running groups keep their places, so the engine goes on
preempting requests until some of them have ended."""
ROOMY = 0.9
"""Share of the cache in use below which there may be another place."""
DECREASE = 0.75
"""Share of the places that a preemption leaves."""


class Places:
    """A number of places from 1 to `most`. It begins at `most`, so that a cache with room is full at once."""

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._limit = most
        self._clock = clock
        self._preemptions = 0
        self._next_decrease = 0.0
        self._next_increase = 0.0

    def follow(self, *, taken: int, cache_use: float, preemptions: int) -> int:
        """Return the number of places now.

        `taken`: places with a group; `cache_use`: share of the cache in use; `preemptions`: requests that the
        engine has preempted since its start.
        """
        preempted, self._preemptions = preemptions > self._preemptions, preemptions
        now = self._clock()
        if now < self._next_decrease:
            return self._limit
        if preempted:
            self._limit = max(1, int(min(self._limit, max(taken, 1)) * DECREASE))
            self._next_decrease = now + SETTLE_SECONDS
        elif now >= self._next_increase and taken >= self._limit < self._most and cache_use < ROOMY:
            self._limit += 1
            self._next_increase = now + INCREASE_SECONDS
        return self._limit
