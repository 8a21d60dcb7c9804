"""A limit on the time of a core that a piece of Python may use, in the main thread of a process."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooSlow(BaseException):
    """The limit was reached. No Exception, so that a library that catches those lets it through."""


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise TooSlow inside after so many seconds of a core, not of a clock: a busy machine is no fault.

    It comes between two instructions of Python; what hangs inside one is for who can kill the process.
    """

    def late(_signal: int, _frame: FrameType | None) -> None:
        raise TooSlow(f"it took more than {seconds:g} s of a core")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
