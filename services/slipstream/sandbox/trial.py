"""Find the layers that work on this machine: for each, a trial program tries to break through it."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from slipstream.sandbox import job, landlock, layers, namespaces, seccomp, supervisor
from slipstream.sandbox.confine import Confinement, library_folders

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
"""Every trial checks that the library can be read and the scratch folder written."""
PROBES: Mapping[str, str] = {
    "rlimits": "0 < resource.getrlimit(resource.RLIMIT_AS)[0] <= {memory_bytes}",
    "user": "os.geteuid() != 0",
    namespaces.SCRATCH: "(disk := os.statvfs('.')).f_blocks * disk.f_frsize <= {disk_bytes}",
    "landlock": "refused(open, {source!r}) and refused(open, '/proc/self/status')",
    "seccomp": "refused(socket.socket) and refused(os.fork) and refused(os.kill, os.getppid(), 0)",
}
HINTS: Mapping[str, str] = {
    "user": "; run as another user than root, or make the library readable for the user nobody"
}


def find_confinement(
    home: str, missing: Mapping[str, str], bounds: job.Bounds
) -> tuple[Confinement, layers.Report]:
    """Return the inner layers that work on this machine, and their report.

    `missing`: layer → reason, for the namespaces that could not be entered.
    """
    lacking = dict(missing)
    confinement = Confinement(
        bounds=bounds,
        library=library_folders(bounds.packages),
        landlock_version=None,
        filter=None,
        switch_user=False,
        own_processes=namespaces.PROCESSES not in missing,
        own_disk=False,
    )
    additions: Mapping[str, Callable[[Confinement], Confinement]] = {
        "rlimits": lambda confinement: confinement,
        "user": _as_nobody(home),
        namespaces.SCRATCH: lambda confinement: replace(confinement, own_disk=True),
        "seccomp": lambda confinement: replace(confinement, filter=seccomp.program(seccomp.this_machine())),
        "landlock": lambda confinement: replace(confinement, landlock_version=landlock.abi()),
    }
    for name, add in additions.items():
        if name in missing:
            continue
        try:
            stronger = add(confinement)
            reason = _failure(name, stronger, home)
        except OSError as error:
            reason = str(error.strerror or error)
        if reason:
            lacking[name] = f"{reason}{HINTS.get(name, '')}"
        else:
            confinement = stronger
    return confinement, layers.Report(
        active=[name for name in layers.INNER if name not in lacking], missing=lacking
    )


def _as_nobody(home: str) -> Callable[[Confinement], Confinement]:
    def add(confinement: Confinement) -> Confinement:
        if os.geteuid() != 0:
            return confinement
        os.chmod(home, 0o711)
        return replace(confinement, switch_user=True)

    return add


def _failure(name: str, confinement: Confinement, home: str) -> str:
    """Return why a layer does not work, or ""."""
    probe = PROBES[name].format(
        memory_bytes=TRIAL_MEMORY_MIB * MIB,
        disk_bytes=namespaces.SCRATCH_DISKS * confinement.bounds.scratch_mib * MIB,
        source=os.path.abspath(__file__),
    )
    try:
        result = supervisor.run_program(
            job.Run(code=WORKS, call=probe, seconds=TRIAL_SECONDS, memory_mib=TRIAL_MEMORY_MIB),
            confinement,
            home,
        )
    except supervisor.RunFailed as error:
        return str(error)
    if result.value == "true":
        return ""
    if result.value is None:
        return f"a trial program failed behind it ({result.end}, status {result.status})"
    return "a trial program passed through it"
