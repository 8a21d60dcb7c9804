"""Whether bubblewrap works on this machine: a server's imports are had in the view, which must not leak."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from contextlib import suppress

from slipstream.sandbox.bubblewrap import Bubblewrap, around
from slipstream.sandbox.interpreter import ENVIRONMENT, INTERPRETER_FLAGS, SOURCE_ROOT
from slipstream.sandbox.server import USED_BY_PROGRAMS

NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "uts")
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
import slipstream.sandbox.trial, {", ".join(USED_BY_PROGRAMS)}
tempfile.TemporaryFile(dir=sys.argv[2]).close()
namespaces = {{name: os.readlink("/proc/self/ns/" + name) for name in {NAMESPACES}}}
print(json.dumps([os.getpid(), os.path.exists(sys.argv[3]), namespaces]))
"""
"""What a server does in the view, and what it must not find there."""


class BubblewrapUnavailable(Exception):
    """This machine has no bubblewrap, or it does not work here; the message says why."""


async def find() -> Bubblewrap:
    """The bubblewrap of this machine, tried. Errors: BubblewrapUnavailable."""
    program = shutil.which("bwrap")
    if program is None:
        raise BubblewrapUnavailable("no `bwrap` on the PATH (Debian's package is `bubblewrap`)")
    needed = json.loads(await _said([sys.executable, *INTERPRETER_FLAGS, "-c", NEEDED]))
    found = around(program, needed)
    await _try(found)
    return found


async def _try(wall: Bubblewrap) -> None:
    """Run the trial program in bubblewrap. Errors: BubblewrapUnavailable when it fails, or sees outside."""
    with tempfile.TemporaryDirectory() as home, tempfile.NamedTemporaryFile() as outside:
        start = [wall.interpreter, *INTERPRETER_FLAGS, "-c", TRIAL, str(SOURCE_ROOT), home, outside.name]
        said = await _said([*wall.command(home, scratch_mib=1), *start])
    try:
        pid, seen, namespaces = json.loads(said)
    except ValueError as error:
        raise BubblewrapUnavailable(f"a trial said {said[:80]!r}") from error
    shared = [name for name in NAMESPACES if namespaces[name] == os.readlink(f"/proc/self/ns/{name}")]
    if pid != 1 or seen or shared:
        raise BubblewrapUnavailable(
            f"a trial saw through it: process {pid}, files {seen}, namespaces {shared}"
        )


async def _said(command: Sequence[str]) -> str:
    """Return the command's stdout. Errors: BubblewrapUnavailable with the last line of its stderr."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=ENVIRONMENT, start_new_session=True
    )
    try:
        async with asyncio.timeout(TRIAL_SECONDS):
            said, complaint = await process.communicate()
    except TimeoutError as error:
        raise BubblewrapUnavailable(f"a trial took more than {TRIAL_SECONDS:g} s") from error
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if process.returncode:
        last = complaint.decode(errors="replace").strip().rsplit("\n", 1)[-1]
        raise BubblewrapUnavailable(last or f"a trial ended with status {process.returncode}")
    return said.decode(errors="replace")
