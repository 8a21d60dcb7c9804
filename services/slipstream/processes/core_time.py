"""How long a process has been computing."""

import time


def core_seconds(pid: int) -> float:
    """Time of a core that all threads of a process had (clock_getcpuclockid of Linux); 0 once it ended."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0
