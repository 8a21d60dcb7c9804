"""The warden of one run: a trusted process between the server and the program.

It reads the run from the server's socket, starts the program in a process of its own without that socket,
feeds and bounds it, ends it, and answers. Only then it reads the nonce of the answer: the program had no copy
of a memory in which it was.
"""

import os
import signal
import socket
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from slipstream.verifier.sandbox import scratch
from slipstream.verifier.sandbox.confine import NOBODY, Walls
from slipstream.verifier.sandbox.job import Ran, Run, run_from_json
from slipstream.verifier.sandbox.kernel import PR_SET_CHILD_SUBREAPER, prctl
from slipstream.verifier.sandbox.program import CONFINED, become
from slipstream.verifier.sandbox.streams import Streams
from slipstream.verifier.workers.core_time import core_seconds
from slipstream.verifier.workers.frames import receive_frame, to_frame

TICK_SECONDS = 0.02
PATIENCE = 5
"""Deadlines that a program may take which waits for a core, on a machine that is too busy."""
END_SECONDS = 5.0
MIB = 1024 * 1024


class Unjudged(Exception):
    """The infrastructure failed the run; the message says how."""


def serve_one(connection: socket.socket, walls: Walls, home: str) -> None:
    """Read one run, have it, answer."""
    message = receive_frame(connection)
    if message is None:
        return
    try:
        reply: dict[str, Any] = asdict(have(run_from_json(message), walls, home))
    except (Unjudged, OSError) as error:
        reply = {"failed": f"{type(error).__name__}: {error}"}
    nonce = receive_frame(connection)
    if nonce is not None:
        connection.sendall(to_frame({**reply, "nonce": nonce["nonce"]}))


def have(run: Run, walls: Walls, home: str) -> Ran:
    """Run a program to its end. Errors: Unjudged, OSError when that could not be done."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    folder = tempfile.mkdtemp(prefix="program-", dir=home)
    try:
        if walls.switch_user:
            os.chown(folder, NOBODY, NOBODY)
        return _supervised(run, walls, folder)
    finally:
        scratch.clear(folder)
        os.rmdir(folder)


def _supervised(run: Run, walls: Walls, folder: str) -> Ran:
    streams = Streams.open(run.stdin, limit=walls.bounds.output_bytes)
    try:
        pid = os.fork()
        if pid == 0:
            become(run, walls, folder, descriptors=streams.theirs)
        started = time.monotonic()
        try:
            streams.close_theirs()
            end = _watch(pid, run.seconds, streams, folder, walls.bounds.scratch_mib * MIB)
        finally:
            status = _end(pid, walls)
        streams.drain()
        return _ran(end, status, streams, time.monotonic() - started)
    finally:
        streams.close()


def _watch(pid: int, seconds: float, streams: Streams, folder: str, scratch_bytes: int) -> str:
    """Until the program ends or is to be ended: "exited", or why it is."""
    descriptor = os.pidfd_open(pid)
    started = time.monotonic()
    try:
        while True:
            if streams.wait(descriptor, TICK_SECONDS):
                return "exited"
            if streams.over():
                return "output"
            if scratch.over(folder, max_bytes=scratch_bytes):
                return "disk"
            late = time.monotonic() - started - seconds
            if late > 0 and (late > _waited_for_core(pid) or core_seconds(pid) >= seconds):
                return "late"
            if late > (PATIENCE - 1) * seconds:
                raise Unjudged(f"no end within {PATIENCE * seconds:g} s on a busy machine")
    finally:
        os.close(descriptor)


def _waited_for_core(pid: int) -> float:
    """Seconds for which the program was ready and got no core; 0 where the kernel does not say.

    It says so of the first thread only, which may have waited for others of the same program.
    """
    with suppress(OSError, ValueError, IndexError):
        outer = _own_children()[0]  # as /proc counts, which may be mounted in another namespace
        with open(f"/proc/{outer}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    return 0.0


def _own_children() -> list[int]:
    with open("/proc/thread-self/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def _end(pid: int, walls: Walls) -> int:
    """Kill the program and whatever it started, and wait for all of it; returns its wait status."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    deadline = time.monotonic() + END_SECONDS
    while True:
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if time.monotonic() > deadline:
            raise Unjudged("what the program started does not end")
        _kill_orphans(walls)


def _kill_orphans(walls: Walls) -> None:
    """Orphans of a program become children of the warden; only without seccomp there can be any."""
    if walls.own_processes:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        return
    for pid in _own_children():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _ran(end: str, status: int, streams: Streams, seconds: float) -> Ran:
    value = bytes(streams.value)
    if not value.startswith(CONFINED):
        said = value.decode(errors="replace") or f"it ended with status {status}"
        raise Unjudged(f"the program could not be confined: {said}")
    if end == "exited" and streams.over():
        end = "output"
    if end == "exited" and os.WIFSIGNALED(status):
        end = "killed"
    return Ran(
        end=end,
        status=os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status),
        stdout=streams.stdout.decode(errors="replace"),
        value=value[len(CONFINED) :].decode(errors="replace") or None,
        seconds=seconds,
    )
