"""Inside a program's process, before its code: the walls go up, for ever.

A layer either goes up or raises: what the server found active in its trial holds for every program.
"""

import gc
import os
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from slipstream.processes.lifetime.parent_death import die_with_parent
from slipstream.sandbox import landlock, seccomp
from slipstream.sandbox.job import Bounds
from slipstream.sandbox.kernel import (
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    drop_capabilities,
    prctl,
)

MIB = 1024 * 1024
OPEN_FILES = 32
LARGEST_FILE_MIB = 8
PROCESSES = 64
NOBODY = 65534
SYSTEM = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64"),
    *("/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime"),
)
"""Shared libraries and time zones."""
DEVICES = ("/dev/null", "/dev/urandom", "/dev/zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What a server builds around every program."""

    bounds: Bounds
    library: Sequence[str]
    """Folders and files that a program may read."""
    landlock_version: int | None
    """None: without Landlock."""
    filter: bytes | None
    """None: without seccomp."""
    switch_user: bool
    """Whether a program runs as nobody; only root can."""
    own_processes: bool
    """Whether the server has a process namespace of its own."""
    own_disk: bool
    """Whether the scratch folder is on a disk that only this server has."""


def library_folders(packages: str = "") -> list[str]:
    """Where the interpreter finds its modules and the shared libraries that they need, and given packages."""
    linked = [entry.path for entry in os.scandir(packages)] if packages else []
    candidates = (*sys.path, *SYSTEM, *DEVICES, *linked)
    return sorted({os.path.realpath(path) for path in candidates if os.path.exists(path)})


def confine(walls: Confinement, folder: str, *, seconds: float, memory_mib: int) -> None:
    """Bound this process and lock it into a folder. Errors: OSError, ValueError."""
    os.setsid()
    die_with_parent()
    os.chdir(folder)
    os.umask(0o077)
    _limit(walls, seconds, memory_mib)
    if walls.switch_user:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        die_with_parent()  # setuid clears PR_SET_PDEATHSIG
    drop_capabilities()
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    if walls.landlock_version is not None:
        landlock.restrict(readable=walls.library, writable=[folder], version=walls.landlock_version)
    if walls.filter is not None:
        seccomp.install(walls.filter)
    gc.enable()


def _limit(walls: Confinement, seconds: float, memory_mib: int) -> None:
    cpu = cpu_seconds(seconds)
    if walls.filter is None:  # seccomp forbids processes; the kernel counts those of all of a user
        _bound(resource.RLIMIT_NPROC, PROCESSES)
    for kind, limit in (
        (resource.RLIMIT_AS, memory_mib * MIB),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_FSIZE, min(LARGEST_FILE_MIB, walls.bounds.scratch_mib) * MIB),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        _bound(kind, limit)


def cpu_seconds(seconds: float) -> int:
    """Time of a core beyond which the kernel kills a program with a deadline."""
    return ceil(seconds) + 1


def _bound(kind: int, limit: int) -> None:
    """Set both limits; one that was inherited and is stricter stays."""
    hard = resource.getrlimit(kind)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (limit, limit))
