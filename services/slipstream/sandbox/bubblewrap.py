"""bubblewrap: a fork server in namespaces of its own, in a view that holds what its interpreter reads.

    verifier ─▶ bwrap ─▶ new namespaces ─▶ the view ─▶ the server, first process of its namespace
        └───────────────────── socket ─────────────────────┘

The view has no file of the machine that the server does not need, and a scratch disk in memory with a bound.
A server that root starts stays root, with the capabilities by which its programs become nobody's; it needs
no user namespace. One that another user starts has a user namespace and no capabilities.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slipstream.sandbox.confine import DEVICES, SYSTEM
from slipstream.sandbox.interpreter import SOURCE_ROOT, SOURCES
from slipstream.sandbox.namespaces import SCRATCH_DISKS

OPTIONS = (
    *("--unshare-pid", "--as-pid-1", "--die-with-parent"),  # it is killed with all that it started
    *("--unshare-net", "--unshare-ipc", "--unshare-cgroup", "--unshare-uts", "--hostname", "sandbox"),
    *("--cap-drop", "ALL", "--chdir", "/"),
)
USER_NAMESPACE = ("--unshare-user",)
CAPABILITIES_OF_ROOT = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubblewrap:
    """A bubblewrap that works on this machine."""

    program: str
    interpreter: str
    """The interpreter itself: a virtual environment is not in the view."""
    readable: Sequence[str]
    """Files and folders in the view, no folder below another."""

    def with_packages(self, folder: str) -> "Bubblewrap":
        """The same with a folder of links to packages, and what they lead to."""
        linked = [os.path.realpath(entry.path) for entry in os.scandir(folder)]
        return replace(self, readable=_outermost([*self.readable, folder, *linked]))

    def command(self, home: str, *, scratch_mib: int) -> list[str]:
        """What comes before the command of a server with a scratch disk at `home`."""
        root = os.geteuid() == 0
        rights = [word for name in CAPABILITIES_OF_ROOT for word in ("--cap-add", f"CAP_{name}")]
        size = SCRATCH_DISKS * scratch_mib * 1024 * 1024
        return [
            *(self.program, *OPTIONS),
            *(rights if root else USER_NAMESPACE),
            *_folders([*self.readable, *DEVICES, home]),
            *_bound("--ro-bind", self.readable),
            *_bound("--dev-bind", DEVICES),
            *("--proc", "/proc"),
            *("--perms", "0700", "--size", str(size), "--tmpfs", home),
            *("--remount-ro", "/", "--"),
        ]


def around(program: str, needed: Sequence[str]) -> Bubblewrap:
    """One whose view holds what the interpreter needs: files and folders, besides those of the system."""
    interpreter = os.path.realpath(sys.executable)
    system = [path for path in SYSTEM if os.path.exists(path)]
    sources = [str(SOURCE_ROOT / "slipstream" / name) for name in SOURCES]
    readable = _outermost([*system, *map(os.path.realpath, [*needed, interpreter]), *sources])
    return Bubblewrap(program=program, interpreter=interpreter, readable=readable)


def _outermost(paths: Sequence[str]) -> list[str]:
    """Paths, without those below another of them."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(f"{folder}/") for folder in kept):
            kept.append(path)
    return kept


def _folders(paths: Sequence[str]) -> list[str]:
    """Options that make the folders above some paths such that every user may pass through them."""
    above = {str(folder) for path in paths for folder in Path(path).parents}
    return [word for folder in sorted(above - {"/"}) for word in ("--perms", "0755", "--dir", folder)]


def _bound(option: str, paths: Sequence[str]) -> list[str]:
    return [word for path in paths for word in (option, path, path)]
