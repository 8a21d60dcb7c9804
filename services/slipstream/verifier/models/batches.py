"""A model that scores answers in batches, in a child process, seen from its parent.

    score ─▶ waiting ─▶ batch ─▶ process ─┬─▶ verdicts
                                          └─▶ late or dead: errors, and a new process for the next batch

`one` waits for the batch of its answer. The loop waits for an answer, and for the process, at most until the
deadline of the batch.
"""

import asyncio
import os
import sys
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from slipstream.config.rewards.models import ScoringModel
from slipstream.processes.child import Child
from slipstream.processes.frames import to_frame
from slipstream.prompts.prompt_json import prompt_to_json
from slipstream.records import Prompt
from slipstream.telemetry import background, logs
from slipstream.verifier.reward import Verdict, failed
from slipstream.verifier.workers.messages import verdict_from_json as read_verdict
from slipstream.verifier.workers.worker import Unprepared, WorkerLost

CHILD = "slipstream.verifier.models.child"


class ModelProcess:
    """A process that has loaded the model. Kill it after WorkerLost."""

    def __init__(self, child: Child) -> None:
        self._child = child

    @classmethod
    async def start(cls, config: ScoringModel) -> "ModelProcess":
        """Start a process, and wait until it has loaded the model. Errors: WorkerLost, with the reason."""
        started = cls(await Child.start(lambda descriptor: _command(descriptor, config)))
        try:
            ready = await started._within(config.start_timeout_seconds, started._child.receive())
            if "unprepared" in ready:
                raise Unprepared(f"{config.path}: {ready['unprepared']}")
        except BaseException:
            await started.kill()
            raise
        return started

    async def ask(self, message: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        """Send a message, and return the reply. Errors: WorkerLost."""
        return await self._within(seconds, self._child.exchange(to_frame(message)))

    async def kill(self) -> None:
        """Kill the process and its session, and wait for its end."""
        await self._child.kill()

    async def _within(self, seconds: float, reply: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(seconds):
                return await reply
        except TimeoutError as error:
            raise WorkerLost(f"the model said nothing within {seconds:g} s") from error
        except (EOFError, OSError, ValueError) as error:
            raise WorkerLost(f"the model's process is gone: {type(error).__name__}: {error}") from error


class Batches:
    """Scores answers by one model. Invariant: a batch never waits for more answers to come."""

    def __init__(self, config: ScoringModel, *, log: logs.Log) -> None:
        self._config = config
        self._log = log
        self._waiting: deque[tuple[list[Any], asyncio.Future[Verdict]]] = deque()
        self._wake = asyncio.Event()
        self._process: ModelProcess | None = None
        self._loop: background.BackgroundTask[None] | None = None

    async def start(self) -> None:
        """Load the model. Errors: WorkerLost."""
        self._process = await ModelProcess.start(self._config)
        self._loop = background.BackgroundTask.begin(self._work(), "scoring of batches", self._log)

    async def one(self, prompt: Prompt, answer: str) -> Verdict:
        """Return the verdict on one answer."""
        assert self._loop is not None, "start first"
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting.append(([prompt_to_json(prompt), answer], future))
        self._wake.set()
        return await future

    async def close(self) -> None:
        """Kill the process. Answers that wait get no verdict."""
        if self._loop is not None:
            await self._loop.end()
        if self._process is not None:
            await self._process.kill()

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while batch := self._next():
                verdicts = await self._scored([pair for pair, _ in batch])
                for (_, future), verdict in zip(batch, verdicts, strict=True):
                    if not future.done():
                        future.set_result(verdict)

    def _next(self) -> list[tuple[list[Any], asyncio.Future[Verdict]]]:
        """Return the oldest answers whose callers still wait, at most a batch."""
        batch: list[tuple[list[Any], asyncio.Future[Verdict]]] = []
        while self._waiting and len(batch) < self._config.batch_size:
            entry = self._waiting.popleft()
            if not entry[1].done():
                batch.append(entry)
        return batch

    async def _scored(self, pairs: Sequence[list[Any]]) -> list[Verdict]:
        try:
            if self._process is None:
                self._process = await ModelProcess.start(self._config)
            reply = await self._process.ask({"pairs": pairs}, seconds=self._config.timeout_seconds)
            verdicts = _read(reply, number=len(pairs))
        except (WorkerLost, OSError) as error:
            self._log.error("reward model lost", reward=self._config.name, error=str(error))
            lost, self._process = self._process, None
            if lost is not None:
                await lost.kill()
            return [failed(str(error)) for _ in pairs]
        return verdicts


def _command(descriptor: int, config: ScoringModel) -> list[str]:
    return [sys.executable, "-m", CHILD, str(descriptor), str(os.getpid()), config.model_dump_json()]


def _read(reply: Mapping[str, Any], *, number: int) -> list[Verdict]:
    """Return the verdicts of a reply. Errors: WorkerLost for a malformed reply, whose process is replaced."""
    try:
        verdicts = [read_verdict(value) for value in reply["verdicts"]]
    except (KeyError, TypeError, ValueError) as error:
        raise WorkerLost(f"the model's reply cannot be read: {type(error).__name__}: {error}") from error
    if len(verdicts) != number:
        raise WorkerLost(f"the model gave {len(verdicts)} verdicts on {number} answers")
    return verdicts
