"""The warden of one run: a trusted process between the server and the program.

It reads the run from the server's socket, starts the program in a process of its own without that socket,
feeds and bounds it, ends it, and answers. Only then it reads the nonce of the answer: the program had no copy
of a memory in which it was.
"""

import os
import resource
import signal
import socket
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from slipstream.processes.cpu_time import cpu_seconds_of
from slipstream.processes.frames import receive_frame, to_frame
from slipstream.sandbox import process_statistics, scratch
from slipstream.sandbox.confine import NOBODY, Confinement, cpu_seconds
from slipstream.sandbox.job import Bounds, Run, RunResult, run_from_json
from slipstream.sandbox.kernel import PR_SET_CHILD_SUBREAPER, prctl
from slipstream.sandbox.program import CONFINED, become
from slipstream.sandbox.streams import Streams

TICK_SECONDS = 0.02
PATIENCE = 5
"""Deadlines that a program may take which waits for a core, on a machine that is too busy."""
LEAST_PATIENCE_SECONDS = 2.0
BEGIN_SECONDS = 10.0
"""Longest time for the walls to go up; only then the program begins, and its deadline counts."""
END_SECONDS = 5.0
CLOCK_TICK_SECONDS = 0.05
MAX_ERROR = 100
MIB = 1024 * 1024


class RunFailed(Exception):
    """The infrastructure failed the run; the message says how."""


def serve_one(connection: socket.socket, walls: Confinement, home: str) -> None:
    """Read one run, have it, answer."""
    message = receive_frame(connection)
    if message is None:
        return
    try:
        reply: dict[str, Any] = asdict(run_program(run_from_json(message), walls, home))
    except (RunFailed, OSError) as error:
        reply = {"failed": f"{type(error).__name__}: {error}"}
    nonce = receive_frame(connection)
    if nonce is not None:
        connection.sendall(to_frame({**reply, "nonce": nonce["nonce"]}))


def run_program(run: Run, walls: Confinement, home: str) -> RunResult:
    """Run a program to its end. Errors: RunFailed, OSError when that could not be done."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    folder = tempfile.mkdtemp(prefix="program-", dir=home)
    try:
        if walls.switch_user:
            os.chown(folder, NOBODY, NOBODY)
        return _supervised(run, walls, folder)
    finally:
        scratch.clear(folder)
        os.rmdir(folder)


def _supervised(run: Run, walls: Confinement, folder: str) -> RunResult:
    streams = Streams.open(run.stdin, limit=walls.bounds.output_bytes)
    try:
        pid = os.fork()
        if pid == 0:
            become(run, walls, folder, descriptors=streams.theirs)
        started = time.monotonic()
        try:
            streams.close_theirs()
            end, doubt = _watch(pid, run.seconds, streams, folder, walls)
            seconds = _could_compute(pid, time.monotonic() - started)
        finally:
            status, used = _end(pid, walls)
        streams.drain()
        if end == "exited" and _killed_by_kernel(status):
            end = _end_of_killed(used, run)
        return _ran(end, status, streams, seconds, doubt)
    finally:
        streams.close()


def _watch(pid: int, seconds: float, streams: Streams, folder: str, walls: Confinement) -> tuple[str, str]:
    """Until the program ends or is to be ended: "exited" or why, and why that may be no fault of its own.

    Errors: RunFailed.
    """
    descriptor = os.pidfd_open(pid)
    started, begun, doubt = time.monotonic(), None, ""
    try:
        while True:
            ended = streams.wait(descriptor, TICK_SECONDS)
            if not walls.own_disk:
                doubt = doubt or scratch.crowded(folder, bytes_needed=walls.bounds.scratch_mib * MIB)
            if ended:
                return "exited", doubt
            now = time.monotonic()
            if begun is None and streams.value:
                begun = now
            if begun is None:
                if now - started > BEGIN_SECONDS:
                    raise RunFailed(f"no walls within {BEGIN_SECONDS:g} s on a busy machine")
            elif end := _too_much(streams, folder, walls.bounds) or _late(pid, now - begun, seconds):
                return end, ""
    finally:
        os.close(descriptor)


def _too_much(streams: Streams, folder: str, bounds: Bounds) -> str:
    """What the program has more of than it may, or nothing."""
    if streams.over():
        return "output"
    if scratch.over(folder, max_bytes=bounds.scratch_mib * MIB):
        return "disk"
    return "threads" if process_statistics.threads() > bounds.threads else ""


def _late(pid: int, elapsed: float, seconds: float) -> str:
    """Whether the program is over its deadline, and not for want of a core. Errors: RunFailed."""
    late = elapsed - seconds
    if late > 0 and (late > process_statistics.waited_for_core() or cpu_seconds_of(pid) >= seconds):
        return "late"
    if late > max((PATIENCE - 1) * seconds, LEAST_PATIENCE_SECONDS):
        raise RunFailed(f"no end within {elapsed:.1f} s on a busy machine")
    return ""


def _could_compute(pid: int, elapsed: float) -> float:
    """Seconds without those in which a program waited for a core, but for its own threads."""
    return min(elapsed, max(elapsed - process_statistics.waited_for_core(), cpu_seconds_of(pid)))


def _end(pid: int, walls: Confinement) -> tuple[int, float]:
    """Kill the program and whatever it started, and wait for it; its wait status and time of a core."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    deadline = time.monotonic() + END_SECONDS
    while True:
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status, usage.ru_utime + usage.ru_stime
        if time.monotonic() > deadline:
            raise RunFailed("what the program started does not end")
        _kill_orphans(walls)


def _kill_orphans(walls: Confinement) -> None:
    """Orphans of a program become children of the warden; only without seccomp there can be any."""
    if walls.own_processes:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        return
    for pid in process_statistics.own_children():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _killed_by_kernel(status: int) -> bool:
    """Of a program that was not ended by its warden, and cannot kill itself: seccomp forbids it."""
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _end_of_killed(used: float, run: Run) -> str:
    """Why the kernel killed a program: for its time of a core, or for want of memory. Errors: RunFailed."""
    inherited = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if used >= cpu_seconds(run.seconds) - CLOCK_TICK_SECONDS:
        return "late"
    if inherited != resource.RLIM_INFINITY and used >= inherited - CLOCK_TICK_SECONDS:
        raise RunFailed(
            f"the verifier was started with a limit of {inherited} s of a core (`ulimit -t`); raise it"
        )
    raise RunFailed(
        "the kernel killed the program, and not for its time: this machine or its cgroup has no memory left; "
        "give it more, or lower verifier.workers"
    )


def _ran(end: str, status: int, streams: Streams, seconds: float, doubt: str) -> RunResult:
    value = bytes(streams.value)
    if not value.startswith(CONFINED):
        said = value.decode(errors="replace") or f"it ended with status {status}"
        raise RunFailed(f"the program could not be confined: {said}")
    if end == "exited" and streams.over():
        end = "output"
    if end == "exited" and os.WIFSIGNALED(status):
        end = "killed"
    said = value[len(CONFINED) :].decode(errors="replace")
    well = end == "exited" and status == 0
    return RunResult(
        end=end,
        status=os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status),
        stdout=streams.stdout.decode(errors="replace"),
        value=(said or None) if well else None,
        error="" if well else said[:MAX_ERROR],
        seconds=seconds,
        doubt=doubt,
    )
