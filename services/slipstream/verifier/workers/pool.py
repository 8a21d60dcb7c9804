"""The pool of child processes: one for each core, replaced after a job that ended it.

    start ─▶ import ─▶ idle ─▶ job ─┬─▶ idle
                                    └─▶ killed ─▶ start

`call` waits for an idle child, at most WAIT_SECONDS, in turns with the answers to other prompts; a slot
waits for the end of its child, and starts anew.
Invariant: a slow or dead child costs one job, never the service. Nothing starts before `start`, and then only
if a reward has prepared a function.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from slipstream.processes import cores, fair_pool, frames
from slipstream.prompts.prompt_json import prompt_to_json
from slipstream.records import Prompt
from slipstream.telemetry import background, logs
from slipstream.telemetry.metrics import Metrics
from slipstream.verifier.reward import Answer, UnusableGroundTruth, Verdict
from slipstream.verifier.workers.messages import answer_to_json, verdict_from_json
from slipstream.verifier.workers.worker import Overrun, Worker, WorkerLost

WAIT_SECONDS = 60.0
PAUSE_AFTER_FAILED_START_SECONDS = 1.0
FATES = ("overrun", "lost", "worn", "cancelled")
"""Reasons for which a child is replaced."""


class JobFailed(Exception):
    """The function of a job raised an exception, which the message describes."""

    says_all = True


class Workers:
    """Child processes that score answers, each one job at a time."""

    def __init__(self, *, number: int | None, memory_mib: int, metrics: Metrics, log: logs.Log) -> None:
        self._number = number
        self._memory_mib = memory_mib
        self._metrics = metrics
        self._log = log
        self._functions: dict[str, None] = {}
        self._idle: fair_pool.FairPool[Worker] = fair_pool.FairPool()
        self._ended: dict[Worker, asyncio.Event] = {}
        self._slots: list[background.BackgroundTask[None]] = []
        self._jobs: set[background.BackgroundTask[list[Verdict]]] = set()

    def prepare(self, function: str) -> None:
        """Have the children import `module:function` when they start. Call it before `start`."""
        assert not self._slots, "functions are prepared before the pool starts"
        self._functions[function] = None

    async def start(self) -> None:
        """Start the children, if any function was prepared. Errors: WorkerLost if one cannot start."""
        if not self._functions:
            return
        for reason in FATES:
            self._metrics.count("workers_killed_total", 0, reason=reason)
        starts = [self._begin() for _ in range(self._number or cores.usable_cores())]
        begun = await asyncio.gather(*starts, return_exceptions=True)
        lost = [failure for failure in begun if isinstance(failure, BaseException)]
        alive = [worker for worker in begun if isinstance(worker, Worker)]
        if lost:
            await asyncio.gather(*(worker.kill() for worker in alive))
            raise lost[0]
        self._slots = [
            background.BackgroundTask.begin(self._keep(worker), "keeping of a child", self._log)
            for worker in alive
        ]

    async def call(
        self,
        function: str,
        arguments: dict[str, Any],
        prompt: Prompt,
        answers: Sequence[Answer],
        *,
        seconds: float,
        group: bool = False,
    ) -> list[Verdict]:
        """Call function(prompt, answer, **arguments) for each answer in one child, or with `group` once.

        A running job is not cancelled with its caller.
        Errors: Overrun if the job exceeds `seconds` or its memory by its own fault; JobFailed;
        UnusableGroundTruth; WorkerLost.
        """
        message = {
            "function": function,
            "arguments": arguments,
            "prompt": prompt_to_json(prompt),
            "answers": [answer_to_json(answer) for answer in answers],
            "group": group,
        }
        frame = frames.to_frame(message)
        worker = await self._free_worker(prompt.prompt_id)
        job = background.BackgroundTask.begin_unlogged(
            self._run(worker, frame, seconds), "job of a child", self._log
        )
        job.keep_in(self._jobs)
        return await job.settle_shielded()

    async def close(self) -> None:
        """Kill every child."""
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*(slot.end() for slot in self._slots))
        await asyncio.gather(*(job.end() for job in self._jobs))

    async def _free_worker(self, group: str) -> Worker:
        try:
            with self._metrics.waiting("worker"):
                async with asyncio.timeout(WAIT_SECONDS):
                    return await self._idle.take(group)
        except TimeoutError as error:
            raise WorkerLost(f"no child was free within {WAIT_SECONDS:g} s") from error

    async def _run(self, worker: Worker, frame: bytes, seconds: float) -> list[Verdict]:
        """Run one job on one child; afterwards the child is idle, or marked as ended."""
        fate = "cancelled"
        try:
            reply = await worker.ask(frame, seconds=seconds)
            fate = "worn" if reply["worn"] else ""
        except Overrun:
            fate = "overrun"
            raise
        except WorkerLost:
            fate = "lost"
            raise
        finally:
            if fate:
                self._metrics.count("workers_killed_total", reason=fate)
                self._ended[worker].set()
            else:
                self._idle.put(worker)
        return _verdicts(reply)

    async def _keep(self, worker: Worker) -> None:
        """Offer a child for jobs, and replace it when it has ended, until cancelled."""
        while True:
            ended = self._ended[worker] = asyncio.Event()
            self._idle.put(worker)
            try:
                await ended.wait()
            finally:
                del self._ended[worker]
                await worker.kill()
            worker = await self._begin_again()

    async def _begin(self) -> Worker:
        return await Worker.start(tuple(self._functions), memory_mib=self._memory_mib)

    async def _begin_again(self) -> Worker:
        while True:
            try:
                return await self._begin()
            except (WorkerLost, OSError) as error:
                self._log.error("worker not started", error=str(error))
                await asyncio.sleep(PAUSE_AFTER_FAILED_START_SECONDS)


def _verdicts(reply: dict[str, Any]) -> list[Verdict]:
    if "unusable" in reply:
        raise UnusableGroundTruth(reply["unusable"], prompt_id=reply["prompt"])
    if "overrun" in reply:
        raise Overrun(reply["overrun"])
    if "failed" in reply:
        raise JobFailed(reply["failed"])
    return [verdict_from_json(value) for value in reply["verdicts"]]
