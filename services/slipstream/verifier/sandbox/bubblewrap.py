"""bubblewrap: a fork server in namespaces of its own, in a view that holds what its interpreter reads.

    verifier ─▶ bwrap ─▶ new namespaces ─▶ the view ─▶ the server, first process of its namespace
        └───────────────────── socket ─────────────────────┘

The view has no file of the machine that the server does not need, and a scratch disk in memory with a bound.
A server that root starts stays root, with the capabilities by which its programs become nobody's; it needs
no user namespace. One that another user starts has a user namespace and no capabilities.
"""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slipstream.verifier.sandbox.confine import DEVICES, SYSTEM
from slipstream.verifier.sandbox.interpreter import (
    ENVIRONMENT,
    INTERPRETER_FLAGS,
    SOURCE_ROOT,
    SOURCES,
)
from slipstream.verifier.sandbox.server import USED_BY_PROGRAMS

NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "uts")
OPTIONS = (
    *("--unshare-pid", "--as-pid-1", "--die-with-parent"),  # it is killed with all that it started
    *("--unshare-net", "--unshare-ipc", "--unshare-cgroup", "--unshare-uts", "--hostname", "sandbox"),
    *("--cap-drop", "ALL", "--chdir", "/"),
)
USER_NAMESPACE = ("--unshare-user",)
CAPABILITIES_OF_ROOT = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
SCRATCH_DISKS = 2
"""Size of the scratch disk, in what a program may keep: files that are removed and still open count too."""
TRIAL_SECONDS = 20.0
NEEDED = """
import json, os, sys
with open("/proc/self/maps") as file:
    mapped = {line.split(maxsplit=5)[-1].strip() for line in file}
print(json.dumps([path for path in {*sys.path, *mapped} if path[:1] == "/" and os.path.exists(path)]))
"""
"""Folders of modules, and the shared libraries that the interpreter itself is made of."""
TRIAL = f"""
import json, os, sys, tempfile
sys.path.insert(0, sys.argv[1])
import slipstream.verifier.sandbox.trial, {", ".join(USED_BY_PROGRAMS)}
tempfile.TemporaryFile(dir=sys.argv[2]).close()
namespaces = {{name: os.readlink("/proc/self/ns/" + name) for name in {NAMESPACES}}}
print(json.dumps([os.getpid(), os.path.exists(sys.argv[3]), namespaces]))
"""
"""What a server does in the view, and what it must not find there."""


class Refused(Exception):
    """This machine has no bubblewrap, or it does not work here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubblewrap:
    """A bubblewrap that works on this machine."""

    program: str
    interpreter: str
    """The interpreter itself: a virtual environment is not in the view."""
    readable: Sequence[str]
    """Files and folders in the view, no folder below another."""

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


async def find() -> Bubblewrap:
    """The bubblewrap of this machine, tried. Errors: Refused."""
    program = shutil.which("bwrap")
    if program is None:
        raise Refused("no `bwrap` on the PATH (Debian's package is `bubblewrap`)")
    needed = json.loads(await _said([sys.executable, *INTERPRETER_FLAGS, "-c", NEEDED]))
    found = _around(program, needed)
    await _try(found)
    return found


def _around(program: str, needed: Sequence[str]) -> Bubblewrap:
    """The view that holds what the interpreter needs."""
    interpreter = os.path.realpath(sys.executable)
    system = [path for path in SYSTEM if os.path.exists(path)]
    sources = [str(SOURCE_ROOT / "slipstream" / name) for name in SOURCES]
    readable = _outermost([*system, *map(os.path.realpath, [*needed, interpreter]), *sources])
    return Bubblewrap(program=program, interpreter=interpreter, readable=readable)


async def _try(wall: Bubblewrap) -> None:
    """Have a server's imports in the view. Errors: Refused when that fails, or the wall has a hole."""
    with tempfile.TemporaryDirectory() as home, tempfile.NamedTemporaryFile() as outside:
        start = [wall.interpreter, *INTERPRETER_FLAGS, "-c", TRIAL, str(SOURCE_ROOT), home, outside.name]
        said = await _said([*wall.command(home, scratch_mib=1), *start])
    try:
        pid, seen, namespaces = json.loads(said)
    except ValueError as error:
        raise Refused(f"a trial said {said[:80]!r}") from error
    shared = [name for name in NAMESPACES if namespaces[name] == os.readlink(f"/proc/self/ns/{name}")]
    if pid != 1 or seen or shared:
        raise Refused(f"a trial saw through it: process {pid}, files {seen}, namespaces {shared}")


async def _said(command: Sequence[str]) -> str:
    """Standard output of a command. Errors: Refused, with the last line of what it complained of."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=ENVIRONMENT, start_new_session=True
    )
    try:
        async with asyncio.timeout(TRIAL_SECONDS):
            said, complaint = await process.communicate()
    except TimeoutError as error:
        raise Refused(f"a trial took more than {TRIAL_SECONDS:g} s") from error
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if process.returncode:
        last = complaint.decode(errors="replace").strip().rsplit("\n", 1)[-1]
        raise Refused(last or f"a trial ended with status {process.returncode}")
    return said.decode(errors="replace")


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
