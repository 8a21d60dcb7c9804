"""The child process of an episode: its environment variables, its folder, its output and its end."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from slipstream.processes.lifetime import left_over, parent_death

INHERITED: Final = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", left_over.TOKEN_VARIABLE)
"""Variables that a program gets from the environment of the actor. The last one marks all processes of a run,
so that the end of the run ends them."""
OUTPUT_SECONDS: Final = 2.0
"""Longest wait for the rest of the output of a program that has ended."""
T = TypeVar("T")
OWN_THREADS: Final = ThreadPoolExecutor(max_workers=4, thread_name_prefix="programs")
KILL_ROUNDS: Final = 3
"""A process may start another one while processes are looked for and killed."""


@dataclass(slots=True)
class Output:
    """The last bytes of a stream."""

    limit: int
    data: bytes = b""
    cut: bool = False

    def add(self, part: bytes) -> None:
        """Append bytes, and forget the first ones over the limit."""
        self.cut |= len(self.data) + len(part) > self.limit
        self.data = (self.data + part)[-self.limit :]

    @property
    def text(self) -> str:
        """The kept bytes as text."""
        return self.data.decode(errors="replace")


class Program:
    """A running program. It leads a session of its own, and dies with the actor."""

    def __init__(
        self, process: asyncio.subprocess.Process, stdout: "OutputPipe", stderr: "OutputPipe"
    ) -> None:
        self._process = process
        self.stdout, self.stderr = stdout.output, stderr.output
        self._group_is_dead = False
        self._ends = [stdout.ended, stderr.ended]

    async def wait(self) -> int:
        """Return the exit status, negative for a signal, once the program has ended.

        Processes that it has left in its group are killed, and its output is complete.
        """
        status = await self._process.wait()
        self._kill_group()
        await asyncio.wait(self._ends, timeout=OUTPUT_SECONDS)
        return status

    async def kill(self) -> None:
        """Kill the program and its group."""
        self._kill_group()
        await self._process.wait()

    def _kill_group(self) -> None:
        """Kill the group once: its number may belong to others after its end."""
        if self._group_is_dead:
            return
        self._group_is_dead = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


@asynccontextmanager
async def running(
    command: Sequence[str], *, folder: Path, environment: Mapping[str, str], output_bytes: int
) -> AsyncIterator[Program]:
    """Start a program in a folder, and kill it with its group at the end. Errors: OSError."""
    async with output_pipe(output_bytes) as stdout, output_pipe(output_bytes) as stderr:
        process = await asyncio.create_subprocess_exec(
            *parent_death.with_parent_death(command),
            cwd=folder,
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout.writable,
            stderr=stderr.writable,
            start_new_session=True,
        )
        program = Program(process, stdout, stderr)
        try:
            stdout.close_writable()
            stderr.close_writable()
            yield program
        finally:
            await program.kill()


class OutputPipe(asyncio.Protocol):
    """A pipe that keeps what a program writes.

    The pipes of asyncio's own subprocesses would make `wait` wait for all processes that hold them.
    """

    def __init__(self, writable: int, limit: int) -> None:
        self.writable = writable
        """File descriptor of the program's end."""
        self.output = Output(limit)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def close_writable(self) -> None:
        """Close the program's end in this process, once."""
        if self.writable >= 0:
            os.close(self.writable)
            self.writable = -1

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self.output.add(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        if not self.ended.done():
            self.ended.set_result(None)


@asynccontextmanager
async def output_pipe(limit: int) -> AsyncIterator[OutputPipe]:
    """Yield a pipe that keeps the last bytes written to it."""
    readable, writable = os.pipe()
    pipe = OutputPipe(writable, limit)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: pipe, os.fdopen(readable, "rb", buffering=0)
    )
    try:
        yield pipe
    finally:
        pipe.close_writable()
        transport.close()


def environment_of(
    variables: Mapping[str, str], *, inherited: Sequence[str], folder: Path, source: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a program: `variables`, and of `source` only what may be inherited.

    The home and the temporary folder are the folder of the episode, so that programs share no state there.
    """
    names = (*INHERITED, *inherited)
    passed = {name: source[name] for name in names if name in source}
    own = {"HOME": str(folder), "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1", "NO_PROXY": "127.0.0.1"}
    return {**own, **passed, **variables}


@asynccontextmanager
async def episode_folder() -> AsyncIterator[Path]:
    """Yield a new folder, and remove it at the end with all that it contains."""
    folder = Path(tempfile.mkdtemp(prefix="slipstream-"))
    try:
        yield folder
    finally:
        await in_own_threads(partial(shutil.rmtree, folder, ignore_errors=True))


async def kill_carriers(mark: str) -> None:
    """Kill all processes that have a text in their environment, those that have left their group included."""
    for _ in range(KILL_ROUNDS):
        carriers = await in_own_threads(partial(left_over.carrying, mark.encode()))
        if not carriers:
            return
        left_over.kill_all(carriers)


async def in_own_threads(work: Callable[[], T]) -> T:
    """Return the result of blocking work, in threads that code of the user cannot keep busy."""
    return await asyncio.get_running_loop().run_in_executor(OWN_THREADS, work)
