"""Confine the program's process before its code runs; the confinement cannot be undone.

A layer that cannot be set up raises. So every program runs behind the layers that the server's trial found
active.
"""

import gc
import os
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from slipstream.processes.lifetime.parent_death import die_with_parent
from slipstream.sandbox import job, kernel, landlock, seccomp

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
    """The layers that a server sets up around each program."""

    bounds: job.Bounds
    library: Sequence[str]
    """Folders and files that a program may read."""
    landlock_version: int | None
    """Version of Landlock's interface; None to go without Landlock."""
    filter: bytes | None
    """The seccomp filter; None to go without seccomp."""
    switch_user: bool
    """Whether a program runs as the user nobody; only root can switch users."""
    own_processes: bool
    """Whether the server has its own process namespace."""
    own_disk: bool
    """Whether the scratch folder is on a tmpfs of this server alone."""


def library_folders(packages: str = "") -> list[str]:
    """Return the paths of Python's library, of shared libraries, devices and the allowed packages."""
    linked = [entry.path for entry in os.scandir(packages)] if packages else []
    candidates = (*sys.path, *SYSTEM, *DEVICES, *linked)
    return sorted({os.path.realpath(path) for path in candidates if os.path.exists(path)})


def confine(confinement: Confinement, folder: str, *, seconds: float, memory_mib: int) -> None:
    """Confine this process, with `folder` as the only writable folder. Errors: OSError, ValueError."""
    os.setsid()
    die_with_parent()
    os.chdir(folder)
    os.umask(0o077)
    _limit(confinement, seconds, memory_mib)
    if confinement.switch_user:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        die_with_parent()  # setuid clears PR_SET_PDEATHSIG
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if confinement.landlock_version is not None:
        landlock.restrict(
            readable=confinement.library, writable=[folder], version=confinement.landlock_version
        )
    if confinement.filter is not None:
        seccomp.install(confinement.filter)
    gc.enable()


def _limit(confinement: Confinement, seconds: float, memory_mib: int) -> None:
    cpu = cpu_seconds(seconds)
    if confinement.filter is None:  # with seccomp it cannot fork; the limit counts all processes of the user
        _bound(resource.RLIMIT_NPROC, PROCESSES)
    for kind, limit in (
        (resource.RLIMIT_AS, memory_mib * MIB),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_FSIZE, min(LARGEST_FILE_MIB, confinement.bounds.scratch_mib) * MIB),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        _bound(kind, limit)


def cpu_seconds(seconds: float) -> int:
    """Return the CPU seconds after which the kernel kills a program with this deadline."""
    return ceil(seconds) + 1


def _bound(kind: int, limit: int) -> None:
    """Set the soft and the hard limit; a stricter inherited limit stays."""
    hard = resource.getrlimit(kind)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (limit, limit))
