"""Try whether bubblewrap works on this machine: a trial program imports the server's modules inside it."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from contextlib import suppress

from slipstream.sandbox import interpreter, server
from slipstream.sandbox.bubblewrap import Bubblewrap, around

NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "uts")
TRIAL_SECONDS = 20.0
NEEDED = """
import json, os, sys
with open("/proc/self/maps") as file:
    mapped = {line.split(maxsplit=5)[-1].strip() for line in file}
print(json.dumps([path for path in {*sys.path, *mapped} if path[:1] == "/" and os.path.exists(path)]))
"""
"""Prints the folders of modules, and the shared libraries of the interpreter."""
TRIAL = f"""
import json, os, sys, tempfile
sys.path.insert(0, sys.argv[1])
import slipstream.sandbox.trial, {", ".join(server.USED_BY_PROGRAMS)}
tempfile.TemporaryFile(dir=sys.argv[2]).close()
namespaces = {{name: os.readlink("/proc/self/ns/" + name) for name in {NAMESPACES}}}
print(json.dumps([os.getpid(), os.path.exists(sys.argv[3]), namespaces]))
"""
"""Imports and writes as a fork server does, and prints what must not be visible to it."""


class BubblewrapUnavailable(Exception):
    """This machine has no working bubblewrap; the message says why."""


async def find() -> Bubblewrap:
    """Return the bubblewrap of this machine after a trial. Errors: BubblewrapUnavailable."""
    program = shutil.which("bwrap")
    if program is None:
        raise BubblewrapUnavailable("no `bwrap` on the PATH (Debian's package is `bubblewrap`)")
    needed = json.loads(await _output_of([sys.executable, *interpreter.INTERPRETER_FLAGS, "-c", NEEDED]))
    bubblewrap = around(program, needed)
    await _try(bubblewrap)
    return bubblewrap


async def _try(bubblewrap: Bubblewrap) -> None:
    """Run the trial program in bubblewrap. Errors: BubblewrapUnavailable when it fails, or sees outside."""
    with tempfile.TemporaryDirectory() as home, tempfile.NamedTemporaryFile() as outside:
        start = [
            bubblewrap.interpreter,
            *interpreter.INTERPRETER_FLAGS,
            "-c",
            TRIAL,
            str(interpreter.SOURCE_ROOT),
            home,
            outside.name,
        ]
        output = await _output_of([*bubblewrap.command(home, scratch_mib=1), *start])
    try:
        pid, seen, namespaces = json.loads(output)
    except ValueError as error:
        raise BubblewrapUnavailable(f"the trial program printed {output[:80]!r}") from error
    shared = [name for name in NAMESPACES if namespaces[name] == os.readlink(f"/proc/self/ns/{name}")]
    if pid != 1 or seen or shared:
        raise BubblewrapUnavailable(
            f"the trial program sees outside of it: process {pid}, files {seen}, namespaces {shared}"
        )


async def _output_of(command: Sequence[str]) -> str:
    """Return the command's stdout. Errors: BubblewrapUnavailable with the last line of its stderr."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=interpreter.ENVIRONMENT, start_new_session=True
    )
    try:
        async with asyncio.timeout(TRIAL_SECONDS):
            stdout, stderr = await process.communicate()
    except TimeoutError as error:
        raise BubblewrapUnavailable(f"the trial program took more than {TRIAL_SECONDS:g} s") from error
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if process.returncode:
        last = stderr.decode(errors="replace").strip().rsplit("\n", 1)[-1]
        raise BubblewrapUnavailable(last or f"the trial program ended with status {process.returncode}")
    return stdout.decode(errors="replace")
