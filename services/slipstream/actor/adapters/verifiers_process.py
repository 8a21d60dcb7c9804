"""The process in which the episodes of a verifiers environment run, as its actor sees it.

Requests and answers are lines of JSON; verifiers_side/runner.py is the other end. The process is started when
it is needed, and again after its end. The episodes of a process that ends, or writes something else than
answers, fail.
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
MOST_UNREAD_BYTES: Final = 64 * 1024 * 1024
"""A process that leaves more of its input unread is killed."""
SHOWN_CHARACTERS: Final = 200
"""Beginning of a line in an error message."""
END_SECONDS: Final = 10.0
"""Longest wait for the end of a killed process: another one may hold its pipes."""


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

        A cancelled call returns at once, even if the process reads nothing. Errors: VerifiersFailed.
        """
        await self.start()
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._write({"id": number, "task": task, "base_url": base_url, "key": key})
            result = await answer
        except asyncio.CancelledError:
            self._write({"id": number, "cancel": True})
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
        _kill(process)
        try:
            await asyncio.wait_for(process.wait(), END_SECONDS)
        except TimeoutError:
            process._transport.close()  # type: ignore[attr-defined]
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=END_SECONDS)
            self._reading.cancel()

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
        await self._until_ready(self._process)
        self._reading = asyncio.create_task(self._read(self._process))

    async def _until_ready(self, process: asyncio.subprocess.Process) -> None:
        """Wait until the environment of a process is loaded. Errors: VerifiersFailed."""
        try:
            async with asyncio.timeout(self._start_seconds):
                first = await _next_message(process)
                if first is None:
                    status = await process.wait()
                    reason = f"it ended with status {status}; the log of the actor has its output"
                    raise VerifiersFailed(reason)
        except TimeoutError as error:
            reason = f"not ready after {self._start_seconds:g} s (data.environment.start_seconds)"
            raise VerifiersFailed(reason) from error
        if "problem" in first:
            raise VerifiersFailed(str(first["problem"]))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Pass the answers to their episodes, until the process ends.

        A process that writes something else than answers is killed.
        """
        reason = "the process of verifiers has ended"
        try:
            while (message := await _next_message(process)) is not None:
                number = message.get("id")
                answer = self._waiting.get(number) if isinstance(number, int) else None
                if answer is not None and not answer.done():
                    answer.set_result(message)
        except VerifiersFailed as error:
            reason = str(error)
            _kill(process)
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_result({"error": reason})

    def _write(self, message: Mapping[str, Any]) -> None:
        """Write a message, unless the process has ended: then `_read` fails the episode.

        Nobody waits until the process has read the message, so that a cancellation takes no time.
        """
        if self._process is None or self._process.stdin is None or self._process.stdin.is_closing():
            return
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        unread = self._process.stdin.transport.get_write_buffer_size()
        if unread > MOST_UNREAD_BYTES:
            self._log.warning("verifiers process killed: it does not read its input", unread_bytes=unread)
            _kill(self._process)


async def _next_message(process: asyncio.subprocess.Process) -> dict[str, Any] | None:
    """Return the next message of a process; None at its end. Errors: VerifiersFailed for another line."""
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
    except ValueError as error:
        raise VerifiersFailed(
            f"the process of verifiers wrote a line of more than {LONGEST_LINE >> 20} MiB"
        ) from error
    if not line:
        return None
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        text = line[:SHOWN_CHARACTERS].decode(errors="replace").strip()
        raise VerifiersFailed(
            f"the process of verifiers wrote a line that is no JSON object to its standard output: {text}"
        )
    return message


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
