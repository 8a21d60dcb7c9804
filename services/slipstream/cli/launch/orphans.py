"""Find and end what a run has left behind, by the marks that every process of the run carries.

Three marks, because each one can be lost: the token in the environment (redis-server and setproctitle write
over it), the session of a pod (a daemon leaves it), and descent from the launcher (lost when that dies).
"""

import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

TOKEN_VARIABLE = "SLIPSTREAM_RUN_TOKEN"
PROC = Path("/proc")
POLL_SECONDS = 0.02


def descendants(ancestor: int) -> set[int]:
    """Living processes below this one; zombies do not count."""
    stats = _stats()
    return {pid for pid in stats if ancestor in _ancestors(pid, stats)}


def left_over(
    token: str,
    *,
    sessions: Collection[int],
    ancestor: int | None,
    spare: Collection[int],
    before: Collection[int] = (),
) -> set[int]:
    """Living processes of the run, `spare` and the ancestor left out; zombies do not count.

    `before` are descendants of the ancestor that are older than the run: descent through them is no mark.
    """
    stats = _stats()
    mark = f"{TOKEN_VARIABLE}={token}".encode()
    found = {pid for pid, (_, session) in stats.items() if session in sessions or mark in _environment(pid)}
    if ancestor is not None:
        older = set(before)
        found |= {
            pid
            for pid in stats
            if ancestor in (above := _ancestors(pid, stats)) and not older & {pid, *above}
        }
    return found - set(spare) - {os.getpid(), ancestor}


def kill_all(pids: Collection[int]) -> None:
    """SIGKILL to each; one that is gone already is fine."""
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
    """Give what is left `grace` seconds, kill the rest until none lives; returns how many were killed."""
    deadline = time.monotonic() + grace
    killed: set[int] = set()
    while left := left_over(token, sessions=sessions, ancestor=ancestor, spare=spare, before=before):
        if time.monotonic() > deadline + 2:
            break
        if time.monotonic() > deadline:
            killed |= left
            kill_all(left)
        time.sleep(POLL_SECONDS)
    return len(killed)


def reap(*, spare: Collection[int]) -> int:
    """Collect the exit status of children that others started and left to us, a subreaper, when they died.

    `spare` are those that somebody waits for. Returns how many were zombies.
    """
    own = PROC / "self" / "task"
    reaped = 0
    for pid in {int(pid) for file in own.glob("*/children") for pid in _text(file).split()} - set(spare):
        try:
            reaped += os.waitpid(pid, os.WNOHANG)[0] == pid
        except ChildProcessError:
            continue
    return reaped


def _text(file: Path) -> str:
    """The text of a file; nothing for a thread that has just ended."""
    try:
        return file.read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _stats() -> dict[int, tuple[int, int]]:
    """Process id → (parent, session) of every process that is not a zombie."""
    found: dict[int, tuple[int, int]] = {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            after_name = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        state, parent, _, session = after_name[:4]
        if state not in "ZX":
            found[int(entry.name)] = (int(parent), int(session))
    return found


def _environment(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def _ancestors(pid: int, stats: dict[int, tuple[int, int]]) -> set[int]:
    seen: set[int] = set()
    while pid in stats and (parent := stats[pid][0]) not in seen:
        seen.add(parent)
        pid = parent
    return seen
