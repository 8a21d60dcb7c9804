"""What the kernel says of a warden's program: how many threads it has, how long it waited for a core."""

from contextlib import suppress

FIRST_FIELD, THREADS_FIELD = 3, 20
"""Of /proc/PID/stat behind the name, which may hold anything; see proc_pid_stat(5)."""


def own_children() -> list[int]:
    """The children of this process as /proc counts them, which may be mounted in another namespace."""
    with open("/proc/thread-self/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def waited_for_core() -> float:
    """Seconds for which the program was ready and got no core; 0 where the kernel does not say.

    It says so of the first thread only, which may have waited for others of the same program.
    """
    with suppress(OSError, ValueError, IndexError):
        return int(_of_program("schedstat").split()[1]) / 1e9
    return 0.0


def threads() -> int:
    """How many threads the program has; 0 where the kernel does not say."""
    with suppress(OSError, ValueError, IndexError):
        return int(_of_program("stat").rpartition(")")[2].split()[THREADS_FIELD - FIRST_FIELD])
    return 0


def _of_program(name: str) -> str:
    with open(f"/proc/{own_children()[0]}/{name}", encoding="ascii", errors="replace") as file:
        return file.read()
