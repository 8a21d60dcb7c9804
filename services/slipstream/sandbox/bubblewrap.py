"""bubblewrap: a fork server in its own namespaces, with a root file system of the files that it needs.

    parent ─▶ bwrap ─▶ new namespaces ─▶ new root ─▶ fork server, process 1 of its namespace
       └───────────────────── socket ────────────────────┘

The new root holds only the files of the machine that the server reads, and a scratch disk of limited size in
memory. A server that root starts stays root, and keeps the capabilities to run programs as the user nobody;
it needs no user namespace. A server that another user starts has a user namespace and no capabilities.
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
    *("--unshare-pid", "--as-pid-1", "--die-with-parent"),  # its end kills all its descendants
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
    """The real path of the interpreter: the new root does not hold a virtual environment."""
    readable: Sequence[str]
    """Files and folders in the new root; none is inside another."""

    def with_packages(self, folder: str) -> "Bubblewrap":
        """Return a copy whose root also holds a folder of links to packages, and the targets of the links."""
        linked = [os.path.realpath(entry.path) for entry in os.scandir(folder)]
        return replace(self, readable=_outermost([*self.readable, folder, *linked]))

    def command(self, home: str, *, scratch_mib: int) -> list[str]:
        """Return the bwrap command to prepend to the command of a server with its scratch disk at `home`."""
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
    """Return a Bubblewrap whose root holds the system's libraries and `needed`, the interpreter's paths."""
    interpreter = os.path.realpath(sys.executable)
    system = [path for path in SYSTEM if os.path.exists(path)]
    sources = [str(SOURCE_ROOT / "slipstream" / name) for name in SOURCES]
    readable = _outermost([*system, *map(os.path.realpath, [*needed, interpreter]), *sources])
    return Bubblewrap(program=program, interpreter=interpreter, readable=readable)


def _outermost(paths: Sequence[str]) -> list[str]:
    """Return the paths that are not inside another of them."""
    outermost: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(f"{folder}/") for folder in outermost):
            outermost.append(path)
    return outermost


def _folders(paths: Sequence[str]) -> list[str]:
    """Return options that create the parent folders of the paths with mode 0755."""
    above = {str(folder) for path in paths for folder in Path(path).parents}
    return [word for folder in sorted(above - {"/"}) for word in ("--perms", "0755", "--dir", folder)]


def _bound(option: str, paths: Sequence[str]) -> list[str]:
    return [word for path in paths for word in (option, path, path)]
