"""The cgroups of this process: their limits, and how often the kernel enforced one.

/proc/self/cgroup gives the place of this process in each hierarchy, and /proc/self/mountinfo the folder where
that hierarchy is mounted. Cgroups of versions 1 and 2 are read. A limit of a parent cgroup counts too. See
cgroups(7).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

UNBOUNDED = 1 << 60
"""Version 1 of cgroups reports a number of this size where there is no limit."""
MEMORY_LIMITS = ("memory.max", "memory.limit_in_bytes")
EVENTS = {"pids.events": "max", "memory.events": "oom_kill", "memory.oom_control": "oom_kill"}
"""File → the line that counts how often the kernel refused a new process, or killed one for memory."""
UNIFIED, MEMORY, PIDS = "", "memory", "pids"


@dataclass(frozen=True, kw_only=True)
class Cgroups:
    """The folders of this process' cgroups, each before its parents."""

    memory: Sequence[Path] = ()
    pids: Sequence[Path] = ()

    def memory_bytes(self) -> int | None:
        """Return the lowest memory limit, in bytes; None without a limit."""
        limits = [_number(folder / name) for folder in self.memory for name in MEMORY_LIMITS]
        return min((limit for limit in limits if limit is not None), default=None)

    def free_processes(self) -> int | None:
        """Return how many further processes and threads may be started; None without a limit."""
        free = []
        for folder in self.pids:
            limit, used = _number(folder / "pids.max"), _number(folder / "pids.current")
            if limit is not None:
                free.append(max(0, limit - (used or 0)))
        return min(free, default=None)

    def events(self) -> int:
        """Return how often the kernel has refused a new process, or killed one, for one of these limits."""
        return sum(_counted(file, line) for file, line in self._event_files)

    @cached_property
    def _event_files(self) -> Sequence[tuple[Path, str]]:
        files = [
            (folder / name, line) for folder in (*self.memory, *self.pids) for name, line in EVENTS.items()
        ]
        return [(file, line) for file, line in dict.fromkeys(files) if file.is_file()]


def own(proc: Path = Path("/proc/self")) -> Cgroups:
    """Return the cgroups of this process; without folders where /proc does not tell them."""
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
    """Parse proc_pid_mountinfo(5): ID PARENT DEVICE ROOT PLACE OPTIONS ... - KIND SOURCE OPTIONS."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        words, (kind, _, options) = before.split(), after.split(maxsplit=2)
        if kind in ("cgroup", "cgroup2"):
            controllers = [UNIFIED] if kind == "cgroup2" else options.split(",")
            yield _Mount(root=words[3], place=words[4], controllers=controllers)


def _folders(mounts: Sequence[_Mount], controller: str, path: str) -> Iterator[Path]:
    """Yield the folder of a cgroup and its parents, as far as they are mounted for this process."""
    for mount in mounts:
        if controller in mount.controllers:
            own = PurePosixPath(path)
            inside = own.relative_to(mount.root) if own.is_relative_to(mount.root) else PurePosixPath()
            place = Path(mount.place)
            # A container may mount only its own cgroup, while /proc shows the path on the node.
            if not (place / inside).is_dir():
                inside = PurePosixPath()
            for folder in (inside, *inside.parents):
                yield place / folder


def _number(file: Path) -> int | None:
    """Return the number in a file; None without a file, without a number, or if it means no limit."""
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
