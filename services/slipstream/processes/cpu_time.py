"""The CPU time of a process."""

import time


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU seconds of all threads of a process; 0 once it has ended (Linux).

    The clock id is that of clock_getcpuclockid(3).
    """
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0
