"""Read /proc for a supervisor's program: its number of threads, and how long it waited for a CPU core."""

from contextlib import suppress

FIRST_FIELD, THREADS_FIELD = 3, 20
"""Numbers of fields of /proc/PID/stat, counted as in proc_pid_stat(5); the first one after the process
name."""


def own_children() -> list[int]:
    """Return the process ids of this process' children, as /proc numbers them.

    /proc may be mounted from another process namespace, so the ids can differ from those of `fork`.
    """
    with open("/proc/thread-self/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def waited_for_core() -> float:
    """Return the seconds for which the program was runnable without a core; 0 where the kernel has no figure.

    The kernel reports the first thread only, which may have waited for other threads of the same program.
    """
    with suppress(OSError, ValueError, IndexError):
        return int(_of_program("schedstat").split()[1]) / 1e9
    return 0.0


def threads() -> int:
    """Return the number of threads of the program; 0 where the kernel has no figure."""
    with suppress(OSError, ValueError, IndexError):
        return int(_of_program("stat").rpartition(")")[2].split()[THREADS_FIELD - FIRST_FIELD])
    return 0


def _of_program(name: str) -> str:
    with open(f"/proc/{own_children()[0]}/{name}", encoding="ascii", errors="replace") as file:
        return file.read()
