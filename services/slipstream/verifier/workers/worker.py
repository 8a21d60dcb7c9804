"""One child process of the pool, seen from its parent."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from math import ceil
from typing import Any

from slipstream import config, parallel
from slipstream.processes import cpu_time, frames
from slipstream.processes.child import Child
from slipstream.rpc.errors import SlipstreamError

CHILD = "slipstream.verifier.workers.child"
START_SECONDS = 120.0
"""Longest time that a child may take to import its functions."""
OWN_FAULT = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE})
"""Signals that end a process whose job exceeded its stack or its memory."""
OWN_SHARE = 0.5
"""A late job that used this share of its deadline as CPU seconds is late by its own fault."""
BLOCKED_SHARE = 0.02
"""A late job that used less than this share of its deadline is blocked: it does not wait for a core."""
PATIENCE = 5
"""Factor on the deadline of a job that gets too little CPU time, on a busy machine."""
LEAST_PATIENCE_SECONDS = 2.0
"""Least time before a job is lost for lack of CPU time, however short its deadline is."""


class WorkerLost(SlipstreamError):
    """The infrastructure failed a job: its child was killed, could not start, or got no CPU time."""

    says_all = True


class Unprepared(WorkerLost, config.ConfigError):
    """A child started, and cannot import or load what the configuration names; the message says why."""


class Overrun(Exception):
    """A job exceeded its time, memory or stack by its own fault, and would exceed it again."""


class Worker:
    """A child process that runs one job at a time. Kill it after WorkerLost or Overrun."""

    def __init__(self, child: Child) -> None:
        self._child = child

    @classmethod
    async def start(cls, functions: Sequence[str], *, memory_mib: int) -> "Worker":
        """Start a child, and wait until it has imported `functions`. Errors: WorkerLost."""
        worker = cls(await Child.start(lambda descriptor: _command(descriptor, functions, memory_mib)))
        try:
            await worker._until_ready()
        except BaseException:
            await worker.kill()
            raise
        return worker

    async def ask(self, frame: bytes, *, seconds: float) -> dict[str, Any]:
        """Send a job, and return the reply. Errors: Overrun, WorkerLost."""
        before = self._cpu_seconds()
        deadlines = max(PATIENCE, ceil(LEAST_PATIENCE_SECONDS / seconds))
        try:
            async with parallel.task_group() as tasks:
                reading = tasks.create_task(self._child.exchange(frame))
                for passed in range(1, deadlines + 1):
                    await asyncio.wait([reading], timeout=seconds)
                    if reading.done():
                        return reading.result()
                    self._check_share(self._cpu_seconds() - before, seconds, passed)
                raise WorkerLost(f"no verdict within {deadlines * seconds:g} s on a busy machine")
        except (EOFError, OSError, ValueError) as error:
            raise await self._ended() from error

    async def _until_ready(self) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await self._child.receive()
        except (EOFError, OSError, TimeoutError, frames.BadFrame) as error:
            raise WorkerLost(f"a child did not start: {type(error).__name__}: {error}") from error
        if "unprepared" in ready:
            raise Unprepared(ready["unprepared"])

    def _check_share(self, used: float, seconds: float, passed: int) -> None:
        """Raise Overrun if the job used its CPU time, and WorkerLost if it used almost none.

        `used`: CPU seconds of the job, after `passed` deadlines of `seconds`.
        """
        if used >= OWN_SHARE * seconds:
            raise Overrun(f"no verdict within {seconds:g} s")
        waited = passed * seconds
        if waited >= LEAST_PATIENCE_SECONDS and used < BLOCKED_SHARE * waited:
            raise WorkerLost(f"no verdict within {waited:g} s, and it does not compute")

    async def kill(self) -> None:
        """Kill the child and all processes of its session, and wait for its end."""
        await self._child.kill()

    async def _ended(self) -> Exception:
        """Return the error for a child that ended during a job."""
        await self.kill()
        status = self._child.status
        if status is not None and -status in OWN_FAULT:
            return Overrun(f"it ended its process by {signal.Signals(-status).name}")
        return WorkerLost(f"the child ended with status {status}")

    def _cpu_seconds(self) -> float:
        return cpu_time.cpu_seconds_of(self._child.pid)


def _command(descriptor: int, functions: Sequence[str], memory_mib: int) -> list[str]:
    arguments = [str(descriptor), str(os.getpid()), str(memory_mib), *functions]
    return [sys.executable, "-m", CHILD, *arguments]
