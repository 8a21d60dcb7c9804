"""How many programs this machine can run at the same time: memory, scratch disk, processes and threads.

Too many programs at a time would make each other fail. If the caller sets no number of servers, as many are
started as fit. If the caller sets a number that does not fit, the sandbox does not start.
"""

import os
import resource
import tempfile
from dataclasses import dataclass

from slipstream.processes.cores import usable_cores
from slipstream.sandbox import cgroup, job, layers, namespaces, setting_names

MIB = 1024 * 1024
LEAST_THREADS = 16
OTHER_PROCESSES = 4
"""Processes of a server besides the program: bubblewrap, the fork server and the supervisor, and one
spare."""


class TooLittleCapacity(ValueError):
    """The machine is too small for this number of programs at a time; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The resources that all programs share."""

    memory_mib: int
    """Memory limit of the cgroup, or memory of the machine where the cgroup has no limit or a higher one."""
    scratch_mib: int
    """Free space on the disk of the temporary folder."""
    processes: int | None
    """Number of further processes and threads that may be started; None without a limit."""
    address_space_mib: int | None
    """Inherited limit on the address space of one process (`ulimit -v`); None without a limit."""

    @classmethod
    def of_this_process(cls, own: cgroup.Cgroups) -> "Capacity":
        """Return the capacity of this process. `own`: its cgroups."""
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        disk = os.statvfs(tempfile.gettempdir())
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limits = [own.free_processes(), _bounded(resource.getrlimit(resource.RLIMIT_NPROC)[0])]
        return cls(
            memory_mib=min(own.memory_bytes() or machine, machine) // MIB,
            scratch_mib=disk.f_bavail * disk.f_frsize // MIB,
            processes=min((limit for limit in limits if limit is not None), default=None),
            address_space_mib=None if hard == resource.RLIM_INFINITY else hard // MIB,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The resources that one program may use."""

    memory_mib: int
    """Largest memory limit of a program, in MiB."""
    bounds: job.Bounds
    disk_in_memory: bool
    """Whether the scratch disk of each server is a tmpfs, which uses memory."""

    @classmethod
    def of(cls, memory_mib: int, bounds: job.Bounds, report: layers.Report) -> "Need":
        """Return the need of one program behind the layers of a report."""
        return cls(memory_mib=memory_mib, bounds=bounds, disk_in_memory=namespaces.SCRATCH in report.active)

    @property
    def scratch_mib(self) -> int:
        """Size of one scratch disk."""
        return namespaces.SCRATCH_DISKS * self.bounds.scratch_mib

    @property
    def all_memory_mib(self) -> int:
        """Memory of one program, with its scratch disk if that is a tmpfs."""
        return self.memory_mib + (self.scratch_mib if self.disk_in_memory else 0)


def servers_for(
    capacity: Capacity,
    need: Need,
    *,
    wanted: int | None,
    settings: setting_names.SettingNames = setting_names.DEFAULT_NAMES,
) -> int:
    """Return the number of servers to start: `wanted`, or as many as there are cores and as fit.

    Errors: TooLittleCapacity.
    """
    servers = wanted or usable_cores()
    while wanted is None and servers > 1 and shortage(capacity, need, servers=servers, settings=settings):
        servers -= 1
    if why := shortage(capacity, need, servers=servers, settings=settings):
        raise TooLittleCapacity(why)
    return servers


def shortage(capacity: Capacity, need: Need, *, servers: int, settings: setting_names.SettingNames) -> str:
    """Return which resource is too small for `servers` programs at a time, and what to do; else ""."""
    number, memory_mib = settings.servers, settings.memory_mib
    where = f"{servers} programs at a time"
    memory, scratch = servers * need.all_memory_mib, servers * need.scratch_mib
    if capacity.address_space_mib is not None and capacity.address_space_mib < need.memory_mib:
        return (
            f"{memory_mib} is {need.memory_mib}, and this process was started with a limit of "
            f"{capacity.address_space_mib} MiB of address space (`ulimit -v`); raise that limit, or lower "
            f"{memory_mib}"
        )
    if memory > capacity.memory_mib:
        return (
            f"{where} of {need.all_memory_mib} MiB need {memory} MiB of memory, and there are "
            f"{capacity.memory_mib}; lower {number} or {memory_mib}, or give the pod more memory"
        )
    if not need.disk_in_memory and scratch > capacity.scratch_mib:
        return (
            f"{where} need {scratch} MiB of scratch disk, and the temporary folder has "
            f"{capacity.scratch_mib} free; enlarge its disk, or lower {number}"
        )
    if threads_each(capacity, need.bounds, servers=servers) < LEAST_THREADS:
        return (
            f"{where} need {servers * (LEAST_THREADS + OTHER_PROCESSES)} processes and threads, and there "
            f"may be {capacity.processes} more (pids.max, `ulimit -u`); raise that limit, or lower {number}"
        )
    return ""


def threads_each(capacity: Capacity, bounds: job.Bounds, *, servers: int) -> int:
    """Return how many threads each program may have, so that none uses up the process limit of the others."""
    if capacity.processes is None:
        return bounds.threads
    return max(0, min(bounds.threads, capacity.processes // servers - OTHER_PROCESSES))


def _bounded(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit
