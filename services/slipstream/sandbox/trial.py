"""Which walls stand on this machine: each is tried by a program that runs against it."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from slipstream.sandbox import landlock, seccomp
from slipstream.sandbox.confine import Confinement, library_folders
from slipstream.sandbox.job import Bounds, Run
from slipstream.sandbox.layers import INNER, Report
from slipstream.sandbox.namespaces import PROCESSES, SCRATCH, SCRATCH_DISKS
from slipstream.sandbox.supervisor import RunFailed, run_program

TRIAL_SECONDS = 10.0
TRIAL_MEMORY_MIB = 512
MIB = 1024 * 1024
WORKS = """
def refused(action, *arguments):
    try:
        action(*arguments)
    except PermissionError:
        return True
    return False
import colorsys, os, resource, socket
open("note", "w").close()
"""
"""The library can be read and the scratch folder written, whatever else holds."""
PROBES: Mapping[str, str] = {
    "rlimits": "0 < resource.getrlimit(resource.RLIMIT_AS)[0] <= {memory_bytes}",
    "user": "os.geteuid() != 0",
    SCRATCH: "(disk := os.statvfs('.')).f_blocks * disk.f_frsize <= {disk_bytes}",
    "landlock": "refused(open, {source!r}) and refused(open, '/proc/self/status')",
    "seccomp": "refused(socket.socket) and refused(os.fork) and refused(os.kill, os.getppid(), 0)",
}
HINTS: Mapping[str, str] = {
    "user": "; run the verifier as another user than root, or let nobody read the library"
}


def find_confinement(home: str, missing: Mapping[str, str], bounds: Bounds) -> tuple[Confinement, Report]:
    """The strongest inner walls that stand, and which they are. `missing`: namespaces that are not there."""
    lacking = dict(missing)
    walls = Confinement(
        bounds=bounds,
        library=library_folders(bounds.packages),
        landlock_version=None,
        filter=None,
        switch_user=False,
        own_processes=PROCESSES not in missing,
        own_disk=False,
    )
    additions: Mapping[str, Callable[[Confinement], Confinement]] = {
        "rlimits": lambda walls: walls,
        "user": _as_nobody(home),
        SCRATCH: lambda walls: replace(walls, own_disk=True),
        "seccomp": lambda walls: replace(walls, filter=seccomp.program(seccomp.this_machine())),
        "landlock": lambda walls: replace(walls, landlock_version=landlock.abi()),
    }
    for name, add in additions.items():
        if name in missing:
            continue
        try:
            stronger = add(walls)
            reason = _refuted(name, stronger, home)
        except OSError as error:
            reason = str(error.strerror or error)
        if reason:
            lacking[name] = f"{reason}{HINTS.get(name, '')}"
        else:
            walls = stronger
    return walls, Report(active=[name for name in INNER if name not in lacking], missing=lacking)


def _as_nobody(home: str) -> Callable[[Confinement], Confinement]:
    def add(walls: Confinement) -> Confinement:
        if os.geteuid() != 0:
            return walls
        os.chmod(home, 0o711)
        return replace(walls, switch_user=True)

    return add


def _refuted(name: str, walls: Confinement, home: str) -> str:
    """Why a wall does not stand, or nothing."""
    probe = PROBES[name].format(
        memory_bytes=TRIAL_MEMORY_MIB * MIB,
        disk_bytes=SCRATCH_DISKS * walls.bounds.scratch_mib * MIB,
        source=os.path.abspath(__file__),
    )
    try:
        ran = run_program(
            Run(code=WORKS, call=probe, seconds=TRIAL_SECONDS, memory_mib=TRIAL_MEMORY_MIB), walls, home
        )
    except RunFailed as error:
        return str(error)
    if ran.value == "true":
        return ""
    if ran.value is None:
        return f"a trial program did not work behind it ({ran.end}, status {ran.status})"
    return "a trial program passed through it"
