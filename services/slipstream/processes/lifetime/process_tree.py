"""Parents and children among processes, as /proc shows them (Linux)."""

from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")


def children(process: Path = PROC / "self") -> list[int]:
    """Return the ids of the processes that `process` has started and not yet reaped.

    A thread that ends while the list is read is skipped: the kernel gives its children to another thread.
    """
    pids: list[int] = []
    for thread in process.glob("task/*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            pids += map(int, (thread / "children").read_text().split())
    return pids


def living() -> dict[int, tuple[int, int]]:
    """Return process id → (parent, session) of every process that is not a zombie."""
    processes: dict[int, tuple[int, int]] = {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            after_name = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        state, parent, _, session = after_name[:4]
        if state not in "ZX":
            processes[int(entry.name)] = (int(parent), int(session))
    return processes


def descendants(ancestor: int) -> set[int]:
    """Return the living processes below this one."""
    processes = living()
    return {pid for pid in processes if ancestor in ancestors(pid, processes)}


def ancestors(pid: int, processes: dict[int, tuple[int, int]]) -> set[int]:
    """Return the ids of all processes above this one, given what `living` has returned."""
    above: set[int] = set()
    while pid in processes and (parent := processes[pid][0]) not in above:
        above.add(parent)
        pid = parent
    return above
