"""Whether this machine has room for the programs that run at the same time: memory, scratch disk, threads.

Programs that do not fit would fail by each other's fault. So a verifier that chooses the number of its
servers itself starts as many as fit, and one that is told a number for which there is no room does not start.
"""

import os
import resource
import tempfile
from dataclasses import dataclass

from slipstream.processes.cores import usable_cores
from slipstream.sandbox.cgroup import Cgroups
from slipstream.sandbox.job import Bounds
from slipstream.sandbox.layers import Report
from slipstream.sandbox.namespaces import SCRATCH, SCRATCH_DISKS

MIB = 1024 * 1024
LEAST_THREADS = 16
OTHER_PROCESSES = 4
"""Of a server beside its program: it itself, bubblewrap's, and its warden."""


class TooLittleCapacity(ValueError):
    """Programs that run at the same time would fail for want of room; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What there is for programs."""

    memory_mib: int
    """Of the cgroup, or of the machine where that has less or no limit."""
    scratch_mib: int
    """Free on the disk of the temporary folder."""
    processes: int | None
    """More processes and threads that there may be; None without a limit."""
    address_space_mib: int | None
    """Limit of one process that this one was started with; None without one."""

    @classmethod
    def of_this_process(cls, own: Cgroups) -> "Capacity":
        """That of this process, which is in some cgroups."""
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
    """What one program may use at a time."""

    memory_mib: int
    """Largest `memory_mib` of the rewards that run code."""
    bounds: Bounds
    disk_in_memory: bool
    """Whether each server has a scratch disk of its own, in memory."""

    @classmethod
    def of(cls, memory_mib: int, bounds: Bounds, report: Report) -> "Need":
        """That of programs behind the layers of a report."""
        return cls(memory_mib=memory_mib, bounds=bounds, disk_in_memory=SCRATCH in report.active)

    @property
    def scratch_mib(self) -> int:
        """Size of a scratch disk."""
        return SCRATCH_DISKS * self.bounds.scratch_mib

    @property
    def all_memory_mib(self) -> int:
        """Memory, with the scratch disk that is in it."""
        return self.memory_mib + (self.scratch_mib if self.disk_in_memory else 0)


def servers_for(room: Capacity, need: Need, *, wanted: int | None) -> int:
    """How many servers to start: as wanted, or as many as cores and as fit. Errors: TooLittleCapacity."""
    servers = wanted or usable_cores()
    while wanted is None and servers > 1 and shortage(room, need, servers=servers):
        servers -= 1
    if why := shortage(room, need, servers=servers):
        raise TooLittleCapacity(why)
    return servers


def shortage(room: Capacity, need: Need, *, servers: int) -> str:
    """What there is too little of for as many programs at a time, or nothing."""
    where = f"verifier.workers: {servers} programs at a time"
    memory, scratch = servers * need.all_memory_mib, servers * need.scratch_mib
    if room.address_space_mib is not None and room.address_space_mib < need.memory_mib:
        return (
            f"memory_mib of code_tests is {need.memory_mib}, and the verifier was started with a limit of "
            f"{room.address_space_mib} MiB of address space (`ulimit -v`); raise it, or lower memory_mib"
        )
    if memory > room.memory_mib:
        return (
            f"{where} of {need.all_memory_mib} MiB need {memory} MiB of memory, and there are "
            f"{room.memory_mib}; set verifier.workers or memory_mib of code_tests lower, or give the pod more"
        )
    if not need.disk_in_memory and scratch > room.scratch_mib:
        return (
            f"{where} need {scratch} MiB of scratch disk, and the verifier's temporary folder has "
            f"{room.scratch_mib} free; give it more room, or set verifier.workers lower"
        )
    if threads_each(room, need.bounds, servers=servers) < LEAST_THREADS:
        return (
            f"{where} need {servers * (LEAST_THREADS + OTHER_PROCESSES)} processes and threads, and there "
            f"may be {room.processes} more (pids.max, `ulimit -u`); raise that, or set verifier.workers lower"
        )
    return ""


def threads_each(room: Capacity, bounds: Bounds, *, servers: int) -> int:
    """Threads that each of some programs may have, so that none takes those of another."""
    if room.processes is None:
        return bounds.threads
    return max(0, min(bounds.threads, room.processes // servers - OTHER_PROCESSES))


def _bounded(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit
