"""Held-out evaluation. The fleet answers it through replay, so it uses the same engines as training."""

import asyncio
import time
from typing import Final

import grpc

from slipstream.config import EvaluationConfig
from slipstream.learner.clients import ReplayClient
from slipstream.learner.report import Report
from slipstream.rpc.errors import SlipstreamError
from slipstream.samples.timeline.writer import NO_TIMELINE, Timeline
from slipstream.samples.writer import SampleWriter
from slipstream.telemetry import background, logs
from slipstream.telemetry.metrics import Metrics

POLL_SECONDS = 0.1
MOST_BYTES: Final = 256 << 20
"""Most bytes of the groups of one evaluation, which wait in memory until all have come."""


class Evaluator:
    """Runs at most one evaluation at a time; an evaluation due while another runs is skipped and logged.

    A failure in the background is logged and shown on the console, and training continues.
    """

    def __init__(
        self,
        *,
        config: EvaluationConfig,
        replay: ReplayClient,
        report: Report,
        timeline: Timeline = NO_TIMELINE,
        metrics: Metrics,
        log: logs.Log,
        start_seconds: float = 0.0,
    ) -> None:
        """Take the longest start of an engine, `start_seconds`: the first evaluation may wait for it."""
        self._config = config
        self._replay = replay
        self._report = report
        self._timeline = timeline
        self._metrics = metrics
        self._log = log
        self._start_seconds = start_seconds
        self._running: background.BackgroundTask[None] | None = None
        self._samples: SampleWriter | None = None
        self.last_step: int | None = None

    def store_in(self, samples: SampleWriter | None) -> None:
        """Have `samples` store the completions of each evaluation that ends; None stores none."""
        self._samples = samples

    def begin(self, version: int) -> None:
        """Evaluate `version` in the background, while training continues."""
        if self._running is not None and not self._running.done:
            self._log.warning("evaluation skipped: the last one is still running", step=version)
            return
        self._running = background.BackgroundTask.begin(
            self.evaluate(version, asyncio.Event()),
            "evaluation",
            self._log,
            on_failure=lambda error: self._show_failure(error, version),
            step=version,
        )

    async def settle(self, stop: asyncio.Event) -> None:
        """Wait for the background evaluation, or cancel it when `stop` is set. Its failure is not raised."""
        running, self._running = self._running, None
        if running is not None:
            await running.settle_or_cancel(stop)

    async def evaluate(self, version: int, stop: asyncio.Event) -> None:
        """Evaluate and report. At the deadline, or when `stop` is set, give up with a log line."""
        with self._timeline.during("evaluate", step=version):
            await self._evaluate(version, stop)

    async def _evaluate(self, version: int, stop: asyncio.Event) -> None:
        evaluation_id = await self._replay.start_evaluation(
            version,
            prompts=self._config.prompts,
            samples_per_prompt=self._config.samples_per_prompt,
            reward=self._config.reward,
        )
        seconds = self._config.timeout_seconds + self._start_seconds
        deadline = time.monotonic() + seconds
        groups = None if self._samples is None else EvaluatedGroups(self._replay, evaluation_id, self._log)
        with self._metrics.waiting("evaluation"):
            while time.monotonic() < deadline and not stop.is_set():
                evaluation = await self._replay.evaluation(evaluation_id)
                if groups is not None:
                    await groups.take(answered=evaluation.completions + evaluation.errors)
                if evaluation.done:
                    if self._samples is not None and groups is not None:
                        self._samples.put_evaluation(version, groups.payloads)
                    self._start_seconds = 0.0
                    self._report.evaluation(version, evaluation)
                    self.last_step = version
                    self._log.info("held out", step=version, accuracy=evaluation.accuracy)
                    return
                await asyncio.sleep(POLL_SECONDS)
        self._log.warning("evaluation given up", step=version, seconds=seconds)

    def _show_failure(self, error: BaseException, version: int) -> None:
        """Write a line for the console, so that the failure is seen before the next evaluation."""
        text = f"held-out evaluation of step {version} failed: {type(error).__name__}: {error}"
        self._report.event("progress", text=text)


class EvaluatedGroups:
    """The groups of one evaluation as they came, for the run to store. What fails here is only logged."""

    def __init__(self, replay: ReplayClient, evaluation_id: str, log: logs.Log) -> None:
        self._replay = replay
        self._evaluation_id = evaluation_id
        self._log = log
        self._answered = 0
        self._next = 1
        self._bytes = 0
        self._complete = True
        self.payloads: list[bytes] = []

    async def take(self, *, answered: int) -> None:
        """Take what has come since the last call. `answered`: completions of the evaluation so far."""
        if not self._complete or answered == self._answered:
            return
        try:
            groups = await self._replay.take_evaluated(self._evaluation_id, self._next)
        except (SlipstreamError, grpc.aio.AioRpcError) as error:
            self._give_up(f"{type(error).__name__}: {error}")
            return
        self._answered = answered
        for number, payload in groups:
            self._next = number + 1
            self._bytes += len(payload)
            if self._bytes > MOST_BYTES:
                self._give_up(f"they have more than {MOST_BYTES >> 20} MiB; lower evaluation.prompts")
                return
            self.payloads.append(payload)

    def _give_up(self, why: str) -> None:
        self._complete = False
        self._log.warning("further completions of the evaluation are not stored", why=why)
