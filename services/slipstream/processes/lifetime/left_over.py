"""Finds and kills the processes that a run has left behind, by the marks that all its processes carry.

There are three marks, because each can be lost: the token in the environment (redis-server and setproctitle
overwrite it), the session of a pod (a daemon leaves it), and descent from the launcher (lost at its death).
"""

import os
import signal
import time
from collections.abc import Collection

from slipstream.processes.lifetime.process_tree import PROC, ancestors, children, living

TOKEN_VARIABLE = "SLIPSTREAM_RUN_TOKEN"
POLL_SECONDS = 0.02
KILLING_SECONDS = 2.0


def left_over(
    token: str,
    *,
    sessions: Collection[int],
    ancestor: int | None,
    spare: Collection[int],
    before: Collection[int] = (),
) -> set[int]:
    """Return the living processes of the run, without `spare` and the ancestor.

    `before`: descendants of the ancestor that are older than the run. Descent through them is no mark.
    """
    processes = living()
    mark = f"{TOKEN_VARIABLE}={token}".encode()
    marked = {
        pid for pid, (_, session) in processes.items() if session in sessions or mark in _environment(pid)
    }
    if ancestor is not None:
        older = set(before)
        marked |= {
            pid
            for pid in processes
            if ancestor in (above := ancestors(pid, processes)) and not older & {pid, *above}
        }
    return marked - set(spare) - {os.getpid(), ancestor}


def carrying(mark: bytes) -> set[int]:
    """Return the living processes that have these bytes in the environment with which they were started."""
    return {pid for pid in living() if mark in _environment(pid)}


def kill_all(pids: Collection[int]) -> None:
    """Send SIGKILL to each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def sweep(
    token: str,
    *,
    sessions: Collection[int],
    ancestor: int | None,
    spare: Collection[int],
    grace: float,
    before: Collection[int] = (),
) -> int:
    """Wait `grace` seconds for the processes of the run, then kill the rest; return how many it killed."""
    deadline = time.monotonic() + grace
    killed: set[int] = set()
    while left := left_over(token, sessions=sessions, ancestor=ancestor, spare=spare, before=before):
        if time.monotonic() > deadline + KILLING_SECONDS:
            break
        if time.monotonic() > deadline:
            killed |= left
            kill_all(left)
        time.sleep(POLL_SECONDS)
    return len(killed)


def reap(*, spare: Collection[int]) -> int:
    """Reap the zombies among our children, and return how many there were.

    `spare`: children whose exit status somebody else waits for. The others are orphans of dead processes,
    which the kernel gave to this process because it is a subreaper.
    """
    reaped = 0
    for pid in set(children()) - set(spare):
        try:
            reaped += os.waitpid(pid, os.WNOHANG)[0] == pid
        except ChildProcessError:
            continue
    return reaped


def _environment(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
