"""The supervisor of one run: a trusted process between the fork server and the program.

The supervisor reads the run from the server's socket, and forks the program's process, which does not have
that socket. It feeds the program, enforces the limits, ends the program, and only then reads the nonce with
which it has to sign the reply. So the nonce was never in a memory of which the program has a copy.
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

from slipstream.processes import cpu_time, frames
from slipstream.sandbox import kernel, program, scratch
from slipstream.sandbox.confine import NOBODY, Confinement, cpu_seconds
from slipstream.sandbox.job import Bounds, Run, RunResult, run_from_json
from slipstream.sandbox.streams import Streams

TICK_SECONDS = 0.02
MAX_DEADLINES = 5
"""On a busy machine a program may take this many times its deadline in wall time, if it waits for a core."""
LEAST_OVERTIME_SECONDS = 2.0
"""Wall time that a program with a short deadline may take beyond it, if it waits for a core."""
BEGIN_SECONDS = 10.0
"""Longest time to confine the process. The program begins afterwards, and its deadline counts from there."""
END_SECONDS = 5.0
CLOCK_TICK_SECONDS = 0.05
MAX_ERROR = 100
MIB = 1024 * 1024
FIRST_FIELD, THREADS_FIELD = 3, 20
"""Numbers of fields of /proc/PID/stat, counted as in proc_pid_stat(5); the first one after the process
name."""


class RunFailed(Exception):
    """The infrastructure failed, so the run has no result; the message says why."""


def serve_one(connection: socket.socket, confinement: Confinement, home: str) -> None:
    """Read one run from the socket, execute it, and send the result."""
    message = frames.receive_frame(connection)
    if message is None:
        return
    try:
        reply: dict[str, Any] = asdict(run_program(run_from_json(message), confinement, home))
    except (RunFailed, OSError) as error:
        reply = {"failed": f"{type(error).__name__}: {error}"}
    nonce = frames.receive_frame(connection)
    if nonce is not None:
        connection.sendall(frames.to_frame({**reply, "nonce": nonce["nonce"]}))


def run_program(run: Run, confinement: Confinement, home: str) -> RunResult:
    """Run a program to its end. Errors: RunFailed or OSError when the infrastructure failed."""
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    folder = tempfile.mkdtemp(prefix="program-", dir=home)
    try:
        if confinement.switch_user:
            os.chown(folder, NOBODY, NOBODY)
        return _supervised(run, confinement, folder)
    finally:
        scratch.clear(folder)
        os.rmdir(folder)


def _supervised(run: Run, confinement: Confinement, folder: str) -> RunResult:
    streams = Streams.open(run.stdin, limit=confinement.bounds.output_bytes)
    try:
        pid = os.fork()
        if pid == 0:
            program.become(run, confinement, folder, descriptors=streams.theirs)
        started = time.monotonic()
        try:
            streams.close_theirs()
            end, doubt = _watch(pid, run.seconds, streams, folder, confinement)
            seconds = _time_on_core(pid, time.monotonic() - started)
        finally:
            status, used = _end(pid, confinement)
        streams.drain()
        if end == "exited" and _killed_by_kernel(status):
            end = _end_of_killed(used, run)
        return _result(end, status, streams, seconds, doubt)
    finally:
        streams.close()


def _watch(
    pid: int, seconds: float, streams: Streams, folder: str, confinement: Confinement
) -> tuple[str, str]:
    """Wait until the program ends or exceeds a limit. Errors: RunFailed.

    Returns "exited" or the limit, and why the machine may be at fault for a failure.
    """
    descriptor = os.pidfd_open(pid)
    started, begun, doubt = time.monotonic(), None, ""
    try:
        while True:
            ended = streams.wait(descriptor, TICK_SECONDS)
            if not confinement.own_disk:
                doubt = doubt or scratch.crowded(folder, bytes_needed=confinement.bounds.scratch_mib * MIB)
            if ended:
                return "exited", doubt
            now = time.monotonic()
            if begun is None and streams.value:
                begun = now
            if begun is None:
                if now - started > BEGIN_SECONDS:
                    raise RunFailed(
                        f"the process was not confined within {BEGIN_SECONDS:g} s on a busy machine"
                    )
            elif end := _exceeded(streams, folder, confinement.bounds) or _late(pid, now - begun, seconds):
                return end, ""
    finally:
        os.close(descriptor)


def _exceeded(streams: Streams, folder: str, bounds: Bounds) -> str:
    """Return the limit that the program exceeds, or ""."""
    if streams.over():
        return "output"
    if scratch.over(folder, max_bytes=bounds.scratch_mib * MIB):
        return "disk"
    return "threads" if threads() > bounds.threads else ""


def _late(pid: int, elapsed: float, seconds: float) -> str:
    """Return "late" if the program used up its deadline, else "".

    Errors: RunFailed if the program is over its deadline because it got no core.
    """
    late = elapsed - seconds
    if late > 0 and (late > waited_for_core() or cpu_time.cpu_seconds_of(pid) >= seconds):
        return "late"
    if late > max((MAX_DEADLINES - 1) * seconds, LEAST_OVERTIME_SECONDS):
        raise RunFailed(f"no end within {elapsed:.1f} s on a busy machine")
    return ""


def _time_on_core(pid: int, elapsed: float) -> float:
    """Return the wall time without the time spent waiting for a core, at least the CPU time of all
    threads."""
    return min(elapsed, max(elapsed - waited_for_core(), cpu_time.cpu_seconds_of(pid)))


def _end(pid: int, confinement: Confinement) -> tuple[int, float]:
    """Kill the program and all its descendants, and wait for them. Returns its wait status and CPU seconds.

    Errors: RunFailed when a descendant does not end.
    """
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
            raise RunFailed("a process that the program started does not end")
        _kill_orphans(confinement)


def _kill_orphans(confinement: Confinement) -> None:
    """Kill the program's orphans, which become children of this process. With seccomp there are none."""
    if confinement.own_processes:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        return
    for pid in own_children():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _killed_by_kernel(status: int) -> bool:
    """Return whether the kernel killed the program.

    The program cannot kill itself: seccomp forbids kill(2).
    """
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _end_of_killed(used: float, run: Run) -> str:
    """Return "late" if the kernel killed the program for its CPU time.

    Errors: RunFailed if an inherited limit on CPU time, or a lack of memory, was the reason.
    """
    inherited = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if used >= cpu_seconds(run.seconds) - CLOCK_TICK_SECONDS:
        return "late"
    if inherited != resource.RLIM_INFINITY and used >= inherited - CLOCK_TICK_SECONDS:
        raise RunFailed(
            f"the sandbox was started with a limit of {inherited} s of CPU time (`ulimit -t`); raise it"
        )
    raise RunFailed(
        "the kernel killed the program, and not for its CPU time: this machine or its cgroup has no memory "
        "left; give it more memory, or run fewer programs at a time"
    )


def _result(end: str, status: int, streams: Streams, seconds: float, doubt: str) -> RunResult:
    value = bytes(streams.value)
    if not value.startswith(program.CONFINED):
        reason = value.decode(errors="replace") or f"it ended with status {status}"
        raise RunFailed(f"the program could not be confined: {reason}")
    if end == "exited" and streams.over():
        end = "output"
    if end == "exited" and os.WIFSIGNALED(status):
        end = "killed"
    written = value[len(program.CONFINED) :].decode(errors="replace")
    succeeded = end == "exited" and status == 0
    return RunResult(
        end=end,
        status=os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status),
        stdout=streams.stdout.decode(errors="replace"),
        value=(written or None) if succeeded else None,
        error="" if succeeded else written[:MAX_ERROR],
        seconds=seconds,
        doubt=doubt,
    )


def own_children() -> list[int]:
    """Return the process ids of this process' children, as /proc numbers them.

    /proc may be mounted from another process namespace, so the ids can differ from those of `fork`.
    """
    with open("/proc/thread-self/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def waited_for_core() -> float:
    """Return the seconds for which the program was runnable without a core; 0 where the kernel has no figure.

    The kernel reports the first thread only, which may have waited for other threads of the same program.
    """
    with suppress(OSError, ValueError, IndexError):
        return int(_of_program("schedstat").split()[1]) / 1e9
    return 0.0


def threads() -> int:
    """Return the number of threads of the program; 0 where the kernel has no figure."""
    with suppress(OSError, ValueError, IndexError):
        return int(_of_program("stat").rpartition(")")[2].split()[THREADS_FIELD - FIRST_FIELD])
    return 0


def _of_program(name: str) -> str:
    with open(f"/proc/{own_children()[0]}/{name}", encoding="ascii", errors="replace") as file:
        return file.read()
