"""A limit on the CPU time of a piece of Python code, in the main thread of a process."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooSlow(BaseException):
    """The limit was reached.

    It is a BaseException, so that libraries which catch Exception do not stop it.
    """


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise TooSlow in the block after `seconds` of CPU time. Waiting for a core on a busy machine does not
    count.

    Python raises it between two bytecode instructions. A C function that hangs is not interrupted: for that,
    run the code in a process that can be killed.
    """

    def late(_signal: int, _frame: FrameType | None) -> None:
        raise TooSlow(f"it took more than {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
