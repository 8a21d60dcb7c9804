"""The process in which the episodes of a verifiers environment run, as its actor sees it.

Requests and answers are lines of JSON; verifiers_side/runner.py is the other end. The process is started when
it is needed, and again after its death, which fails the episodes that it had.
"""

import asyncio
import itertools
import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from slipstream.actor.adapters.local_server import child_environment, executable
from slipstream.processes.lifetime.parent_death import with_parent_death
from slipstream.rpc.errors import SlipstreamError
from slipstream.telemetry.logs import Log

RUNNER: Final = Path(__file__).parent / "verifiers_side" / "runner.py"
LONGEST_LINE: Final = 64 * 1024 * 1024


class VerifiersFailed(SlipstreamError):
    """The process cannot be started or has ended, or the environment has failed in an episode."""


class VerifiersProcess:
    """Runs episodes, many at a time. Invariant: at most one process lives, and none after `close`."""

    def __init__(
        self,
        python: str,
        arguments: Mapping[str, Any],
        *,
        env: Mapping[str, str],
        start_seconds: float,
        log: Log,
    ) -> None:
        """`arguments`: the `env` section of verifiers."""
        self._python = python
        self._arguments = json.dumps(arguments)
        self._env = env
        self._start_seconds = start_seconds
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count()
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start the process if none runs. Errors: VerifiersFailed with what is wrong with the environment."""
        async with self._starting:
            if self._reading is None or self._reading.done():
                await self._start()

    async def play(self, task: Mapping[str, Any], *, base_url: str, key: str) -> dict[str, Any]:
        """Return the `rewards` and the `answer` of an episode; a cancelled call ends the episode.

        Errors: VerifiersFailed.
        """
        await self.start()
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            await self._send({"id": number, "task": task, "base_url": base_url, "key": key})
            result = await answer
        except asyncio.CancelledError:
            await self._send({"id": number, "cancel": True})
            raise
        finally:
            del self._waiting[number]
        if "error" in result:
            raise VerifiersFailed(str(result["error"]))
        return result

    async def close(self) -> None:
        """Kill the process, with all that it has started in its group."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if self._reading is not None:
            await self._reading

    async def _start(self) -> None:
        if self._process is not None:
            self._log.warning("verifiers process ended", status=self._process.returncode)
            await self.close()
        python = executable(self._python)
        if python is None:
            raise VerifiersFailed(f"there is no program {self._python} (data.environment.python)")
        try:
            self._process = await asyncio.create_subprocess_exec(
                *with_parent_death([python, str(RUNNER), "serve", self._arguments]),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
                env=child_environment(self._env),
                limit=LONGEST_LINE,
            )
        except OSError as error:
            raise VerifiersFailed(f"{python} cannot be started: {error}") from error
        first = await self._first(self._process)
        if "problem" in first:
            raise VerifiersFailed(str(first["problem"]))
        self._reading = asyncio.create_task(self._read(self._process))

    async def _first(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        """Return the first message of a process, which it says once the environment is loaded."""
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._start_seconds):
                line = await process.stdout.readline()
        except TimeoutError:
            return {"problem": f"not ready after {self._start_seconds:g} s (data.environment.start_seconds)"}
        if not line:
            status = await process.wait()
            return {"problem": f"it ended with status {status}; the log of the actor has its output"}
        return _message(line)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Hand the answers to their episodes, until the process ends."""
        assert process.stdout is not None
        while line := await process.stdout.readline():
            message = _message(line)
            answer = self._waiting.get(message.get("id", -1))
            if answer is not None and not answer.done():
                answer.set_result(message)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result({"error": "the process of verifiers has ended"})

    async def _send(self, message: Mapping[str, Any]) -> None:
        """Write a message, unless the process has ended: then `_read` says so."""
        if self._process is None or self._process.stdin is None:
            return
        with suppress(OSError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            await self._process.stdin.drain()


def _message(line: bytes) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(line)
    return message
