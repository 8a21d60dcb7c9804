"""One child process of a run: its own session, its log, its ready file, its end."""

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from slipstream.rpc.ready_file import ReadyFile

READY_POLL_SECONDS = 0.05
PROGRESS_SECONDS = 0.2
LOG_LINES = 15
LONGEST_ERROR_TAIL_BYTES = 64 * 1024
LONGEST_ERROR = 600
"""Most characters of the exception that are shown."""
_EXCEPTION = re.compile(
    r"^(?:\([^)]*\) )?"  # (EngineCore pid=17425)
    r"(?:ERROR \S+ \S+ \[[^\]]*\] )?"  # ERROR 11-22 17:17:15 [core.py:1510]
    r"(?P<error>(?:\w+\.)*[A-Z]\w*(?:Error|Exception): \S.*)$"
)


class Process:
    """A running child. Spawn it from the main thread: the kernel's parent-death signal is per thread."""

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as stream:
            self._log_start = stream.tell()
            self._popen = _spawn(command, stream, environment)
        self.pid = self._popen.pid

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._popen.poll()

    async def ended(self) -> int:
        """Wait for the end, without waking up before it; returns the exit status."""
        while (status := self.status) is None:
            await _death(self.pid)
        return status

    async def ready(self, file: Path, *, seconds: float) -> str:
        """Wait for the ready file; returns the address in it.

        Errors: PodFailed when the process ends first, or when `seconds` are over.
        """
        end = asyncio.create_task(self.ended())
        try:
            async with asyncio.timeout(seconds):
                while (ready := ReadyFile.read(file)) is None:
                    if end.done():
                        raise PodFailed(f"{self.name} {ended_how(end.result())} before it was ready", self)
                    await asyncio.wait([end], timeout=READY_POLL_SECONDS)
        except TimeoutError as error:
            raise PodFailed(f"{self.name} was not ready after {seconds:g} s", self) from error
        finally:
            end.cancel()
        return ready.address

    def ask_to_stop(self) -> None:
        """SIGTERM to the process itself: it finishes or hands back, then exits."""
        if self.status is None:
            self._popen.terminate()

    def kill(self) -> None:
        """SIGKILL to the process and to everything of its group."""
        if self.status is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._popen.wait()

    def last_lines(self, count: int = LOG_LINES) -> list[str]:
        """The last lines that this process, and no earlier one, wrote to its log."""
        with self.log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(self._log_start, size - LONGEST_ERROR_TAIL_BYTES))
            return stream.read().decode(errors="replace").splitlines()[-count:]

    def first_error(self) -> str | None:
        """The first exception that this process, or one that it started, wrote to its log."""
        with self.log.open("rb") as stream:
            stream.seek(self._log_start)
            return first_error(line.decode(errors="replace") for line in stream)


class PodFailed(Exception):
    """A pod ended, or did not start, and the run cannot go on; the message carries its last log lines."""

    def __init__(self, what: str, process: Process) -> None:
        error = process.first_error()
        first = "" if error is None else f"; its first error: {error}"
        tail = "".join(f"\n  | {line}" for line in process.last_lines())
        super().__init__(f"{what}{first}\nthe end of {process.log}:{tail or ' (it is empty)'}")


def ended_how(status: int) -> str:
    """An exit status in words."""
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"exited with status {status}"


async def stop_while_it_progresses(
    process: Process, progress: Callable[[], Hashable], *, patience_seconds: float
) -> bool:
    """Ask to stop, and wait as long as `progress` returns something new at least every `patience_seconds`;
    then kill. Returns whether it ended by itself."""
    process.ask_to_stop()
    last, since = progress(), time.monotonic()
    while process.status is None:
        await asyncio.sleep(PROGRESS_SECONDS)
        now = progress()
        if now != last:
            last, since = now, time.monotonic()
        if process.status is None and time.monotonic() - since > patience_seconds:
            process.kill()
            return False
    return True


async def stop_processes(processes: Sequence[Process], *, seconds: float) -> list[str]:
    """Ask all to stop, wait at most `seconds`, kill the rest; returns the names of those killed."""
    for process in processes:
        process.ask_to_stop()
    try:
        async with asyncio.timeout(seconds):
            for process in processes:
                await process.ended()
    except TimeoutError:
        late = [process for process in processes if process.status is None]
        for process in late:
            process.kill()
        return [process.name for process in late]
    return []


def first_error(lines: Iterable[str]) -> str | None:
    """Return type and message of the first exception in the output of a failed process; None without one.

    vLLM's engine is a child process. When it fails, the log ends with an error of the parent («Engine core
    initialization failed. See root cause above»), some hundred lines after the cause.
    """
    error = next((match["error"] for line in lines if (match := _EXCEPTION.match(line.rstrip()))), None)
    return None if error is None else error[:LONGEST_ERROR]


async def _death(pid: int) -> None:
    """Wait until a child that has not been reaped is dead: the kernel makes its pidfd readable then."""
    loop, dead = asyncio.get_running_loop(), asyncio.Event()
    descriptor = os.pidfd_open(pid)
    loop.add_reader(descriptor, dead.set)
    try:
        await dead.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _spawn(
    command: Sequence[str], stream: IO[bytes], environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stream,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=dict(environment),
    )
