"""Held-out evaluation: asked of the fleet through replay, so it uses the same engines as training."""

import asyncio
import time

from slipstream.config import EvaluationConfig
from slipstream.learner.clients import ReplayClient
from slipstream.learner.report import Report
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics

POLL_SECONDS = 0.1


class Evaluator:
    """At most one evaluation at a time; one that comes due while another runs is skipped and logged."""

    def __init__(
        self, *, config: EvaluationConfig, replay: ReplayClient, report: Report, metrics: Metrics, log: Log
    ) -> None:
        self._config = config
        self._replay = replay
        self._report = report
        self._metrics = metrics
        self._log = log
        self._running: asyncio.Task[None] | None = None
        self.last_step: int | None = None

    def begin(self, version: int) -> None:
        """Evaluate `version` in the background, while training goes on."""
        if self._running is not None and not self._running.done():
            self._log.warning("evaluation skipped: the last one is still running", step=version)
            return
        self._running = asyncio.create_task(self.evaluate(version, asyncio.Event()))

    async def settle(self, stop: asyncio.Event) -> None:
        """Wait for a background evaluation, or give it up when `stop` is set. Errors: its own."""
        if self._running is None:
            return
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((self._running, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if self._running.done():
            self._running.result()
        else:
            self._running.cancel()
        self._running = None

    async def evaluate(self, version: int, stop: asyncio.Event) -> None:
        """Evaluate and report; gives up, with a log line, at the deadline or when `stop` is set."""
        evaluation_id = await self._replay.start_evaluation(
            version,
            prompts=self._config.prompts,
            samples_per_prompt=self._config.samples_per_prompt,
            reward=self._config.reward,
        )
        deadline = time.monotonic() + self._config.timeout_seconds
        with self._metrics.waiting("evaluation"):
            while time.monotonic() < deadline and not stop.is_set():
                evaluation = await self._replay.evaluation(evaluation_id)
                if evaluation.done:
                    self._report.evaluation(version, evaluation)
                    self.last_step = version
                    self._log.info("held out", step=version, accuracy=evaluation.accuracy)
                    return
                await asyncio.sleep(POLL_SECONDS)
        self._log.warning("evaluation given up", step=version, seconds=self._config.timeout_seconds)
