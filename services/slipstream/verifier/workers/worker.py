"""One child of the pool, as its parent sees it."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from math import ceil
from typing import Any

from slipstream.config import ConfigError
from slipstream.processes.child import Child
from slipstream.processes.cpu_time import cpu_seconds_of
from slipstream.processes.frames import BadFrame
from slipstream.rpc.errors import SlipstreamError

CHILD = "slipstream.verifier.workers.child"
START_SECONDS = 120.0
"""Longest wait for a child to have imported its functions."""
OWN_FAULT = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE})
"""Signals by which a job that overran its stack, or its memory, ends a process."""
OWN_SHARE = 0.5
"""A job that is late and has had this share of its deadline as time of a core is late by its own fault."""
BLOCKED_SHARE = 0.02
"""One that has had less than this waits for something else than a core."""
PATIENCE = 5
"""Deadlines that a job may take that gets too little of a core, on a machine that is too busy."""
LEAST_PATIENCE_SECONDS = 2.0
"""Time before which no job is lost for want of a core, however short its deadline is."""


class WorkerLost(SlipstreamError):
    """The infrastructure failed a job: its child was killed, could not start, or got no time of a core."""

    says_all = True


class Unprepared(WorkerLost, ConfigError):
    """A child lives, and cannot import or load what the configuration names; the message says why."""


class Overrun(Exception):
    """A job needed more time, memory or stack than it may have; it would do so again."""


class Worker:
    """A child process that answers one message at a time. It is of no use after WorkerLost or Overrun."""

    def __init__(self, child: Child) -> None:
        self._child = child

    @classmethod
    async def start(cls, functions: Sequence[str], *, memory_mib: int) -> "Worker":
        """A child that has imported `functions`. Errors: WorkerLost."""
        worker = cls(await Child.start(lambda descriptor: _command(descriptor, functions, memory_mib)))
        try:
            await worker._until_ready()
        except BaseException:
            await worker.kill()
            raise
        return worker

    async def ask(self, frame: bytes, *, seconds: float) -> dict[str, Any]:
        """The answer to a message, within `seconds`. Errors: Overrun, WorkerLost."""
        reading = asyncio.create_task(self._child.exchange(frame))
        before = self._cpu_seconds()
        try:
            deadlines = max(PATIENCE, ceil(LEAST_PATIENCE_SECONDS / seconds))
            for passed in range(1, deadlines + 1):
                await asyncio.wait([reading], timeout=seconds)
                if reading.done():
                    return reading.result()
                self._check_share(self._cpu_seconds() - before, seconds, passed)
            raise WorkerLost(f"no verdict within {deadlines * seconds:g} s on a busy machine")
        except (EOFError, OSError, ValueError) as error:
            raise await self._ended() from error
        finally:
            reading.cancel()

    async def _until_ready(self) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await self._child.receive()
        except (EOFError, OSError, TimeoutError, BadFrame) as error:
            raise WorkerLost(f"a child did not start: {type(error).__name__}: {error}") from error
        if "unprepared" in ready:
            raise Unprepared(ready["unprepared"])

    def _check_share(self, used: float, seconds: float, passed: int) -> None:
        """What to think of a job that has had `used` seconds of a core in so many of its deadlines."""
        if used >= OWN_SHARE * seconds:
            raise Overrun(f"no verdict within {seconds:g} s")
        waited = passed * seconds
        if waited >= LEAST_PATIENCE_SECONDS and used < BLOCKED_SHARE * waited:
            raise WorkerLost(f"no verdict within {waited:g} s, and it does not compute")

    async def kill(self) -> None:
        """End the child and all of its session, and wait for it."""
        await self._child.kill()

    async def _ended(self) -> Exception:
        """Why a child ended in the middle of a job."""
        await self.kill()
        status = self._child.status
        if status is not None and -status in OWN_FAULT:
            return Overrun(f"it ended its process by {signal.Signals(-status).name}")
        return WorkerLost(f"the child ended with status {status}")

    def _cpu_seconds(self) -> float:
        return cpu_seconds_of(self._child.pid)


def _command(descriptor: int, functions: Sequence[str], memory_mib: int) -> list[str]:
    arguments = [str(descriptor), str(os.getpid()), str(memory_mib), *functions]
    return [sys.executable, "-m", CHILD, *arguments]
