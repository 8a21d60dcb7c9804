"""The cgroups of this process: what their limits leave it, and how often the kernel had to enforce one.

/proc/self/cgroup says where in each hierarchy this process is, and /proc/self/mountinfo where that can be
read. Both versions of cgroups are read, and a limit of every folder above counts as well. See cgroups(7).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

UNBOUNDED = 1 << 60
"""Version 1 says a number of this size where there is no limit."""
MEMORY_LIMITS = ("memory.max", "memory.limit_in_bytes")
EVENTS = {"pids.events": "max", "memory.events": "oom_kill", "memory.oom_control": "oom_kill"}
"""File → the line that counts how often the kernel refused a process, or killed one."""
UNIFIED, MEMORY, PIDS = "", "memory", "pids"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroups:
    """The folders of the cgroups that this process is in, each before those above it."""

    memory: Sequence[Path] = ()
    pids: Sequence[Path] = ()
    _events: Sequence[tuple[Path, str]] = field(init=False)

    def __post_init__(self) -> None:
        folders = [*self.memory, *self.pids]
        files = {folder / name: line for folder in folders for name, line in EVENTS.items()}
        known = [(file, line) for file, line in files.items() if file.is_file()]
        object.__setattr__(self, "_events", known)

    def memory_bytes(self) -> int | None:
        """The lowest limit of memory; None without one."""
        limits = [_number(folder / name) for folder in self.memory for name in MEMORY_LIMITS]
        return min((limit for limit in limits if limit is not None), default=None)

    def free_processes(self) -> int | None:
        """How many more processes and threads there may be; None without a limit."""
        free = []
        for folder in self.pids:
            limit, used = _number(folder / "pids.max"), _number(folder / "pids.current")
            if limit is not None:
                free.append(max(0, limit - (used or 0)))
        return min(free, default=None)

    def events(self) -> int:
        """How often the kernel has refused a process or killed one for a limit, so far."""
        return sum(_counted(file, line) for file, line in self._events)


def own(proc: Path = Path("/proc/self")) -> Cgroups:
    """Those of this process; without folders where the kernel does not say."""
    memory: list[Path] = []
    pids: list[Path] = []
    with suppress(OSError, ValueError):
        mounts = list(_mounts((proc / "mountinfo").read_text(encoding="utf-8", errors="replace")))
        for line in (proc / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines():
            _, controllers, path = line.split(":", 2)
            names = controllers.split(",")
            for folders, name in ((memory, MEMORY), (pids, PIDS)):
                if name in names or controllers == UNIFIED:
                    folders += _folders(mounts, name if name in names else UNIFIED, path)
    return Cgroups(memory=memory, pids=pids)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    root: str
    place: str
    controllers: Sequence[str]


def _mounts(mountinfo: str) -> Iterator[_Mount]:
    """See proc_pid_mountinfo(5): ID PARENT DEVICE ROOT PLACE OPTIONS ... - KIND SOURCE OPTIONS."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        words, (kind, _, options) = before.split(), after.split(maxsplit=2)
        if kind in ("cgroup", "cgroup2"):
            controllers = [UNIFIED] if kind == "cgroup2" else options.split(",")
            yield _Mount(root=words[3], place=words[4], controllers=controllers)


def _folders(mounts: Sequence[_Mount], controller: str, path: str) -> Iterator[Path]:
    """The folder of a cgroup and those above it, as far as they are mounted here."""
    for mount in mounts:
        if controller in mount.controllers:
            own = PurePosixPath(path)
            inside = own.relative_to(mount.root) if own.is_relative_to(mount.root) else PurePosixPath()
            place = Path(mount.place)
            if not (
                place / inside
            ).is_dir():  # a path of the node, in a container that sees its own part only
                inside = PurePosixPath()
            for folder in (inside, *inside.parents):
                yield place / folder


def _number(file: Path) -> int | None:
    """The number in a file; None for no file, no number, or one that means no limit."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdigit() and int(text) < UNBOUNDED else None


def _counted(file: Path, line: str) -> int:
    with suppress(OSError, ValueError):
        for words in map(str.split, file.read_text(encoding="ascii").splitlines()):
            if words[:1] == [line]:
                return int(words[1])
    return 0
