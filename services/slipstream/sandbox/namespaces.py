"""Namespaces of a fork server without bubblewrap: an empty network, own processes, own mounts."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from slipstream.sandbox import kernel

NETWORK, PROCESSES, SCRATCH = "network_namespace", "pid_namespace", "scratch_disk"
MIB = 1024 * 1024
SCRATCH_DISKS = 2
"""Size of a scratch disk as a multiple of a program's limit: files that are deleted but still open use space
too."""
INODES = 1024
"""Limit of files and folders on the disk; a program is ended at a quarter of it (scratch.MAX_ENTRIES)."""


def enter(home: str, *, scratch_mib: int) -> dict[str, str]:
    """Enter the namespaces that this machine allows, and mount a scratch disk at `home`.

    Returns layer → why it is missing. The process namespace holds for children: the next child is its process
    1.
    """
    try:
        _enter_user()
    except OSError as error:
        return dict.fromkeys((NETWORK, PROCESSES, SCRATCH), f"no new user namespace: {error.strerror}")
    missing = {}
    steps: Mapping[str, Callable[[], None]] = {
        NETWORK: lambda: kernel.unshare(kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC),
        SCRATCH: lambda: _mount_scratch_disk(home, SCRATCH_DISKS * scratch_mib * MIB),
        PROCESSES: lambda: kernel.unshare(kernel.CLONE_NEWPID),
    }
    for name, step in steps.items():
        try:
            step()
        except OSError as error:
            missing[name] = f"{'mount' if name == SCRATCH else 'unshare'}: {error.strerror}"
    return missing


def _mount_scratch_disk(home: str, size: int) -> None:
    """Mount a tmpfs that only this server uses, so that no program fills another's disk."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount(None, "/", kernel.MS_REC | kernel.MS_PRIVATE)
    options = f"size={size},nr_inodes={INODES},mode=0700"
    kernel.mount("tmpfs", home, kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC, options)


def _enter_user() -> None:
    """Unless this is root, enter a user namespace, in which the other namespaces are allowed.

    Errors: OSError.
    """
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        return
    kernel.unshare(kernel.CLONE_NEWUSER)
    own = Path("/proc/self")
    for file, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        (own / file).write_text(text, encoding="ascii")
