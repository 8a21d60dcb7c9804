"""The learner's loop: sample, train, acknowledge, publish, announce; it never waits for a worker's work.

    ┌─▶ sample ─▶ train ─▶ ack ─▶ publish ─▶ announce ─▶ checkpoint, evaluate ─┐
    │     ▲ prefetched while training                                          │
    └──────────────────────────────────────────────────────────────────────────┘

It waits for a full batch (bounded by learner.sample_timeout_seconds; unblocked by inserts), and for the
workers' swap of weights (bounded by weights.timeout_seconds). Torch runs in a thread; gRPC in this loop.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slipstream.config import RunConfig
from slipstream.learner.checkpoint import State, prune, save_checkpoint, save_model
from slipstream.learner.clients import ReplayClient
from slipstream.learner.evaluation import Evaluator
from slipstream.learner.prefetch import Prefetch
from slipstream.learner.publisher import Published, Publisher
from slipstream.learner.record import StepResult
from slipstream.learner.report import Report, Timing
from slipstream.learner.step import Abandoned, TrainingStep
from slipstream.rpc.errors import SlipstreamError
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.types import Generated, Group


class Starved(SlipstreamError):
    """No full batch came within the deadline."""


class Diverged(SlipstreamError):
    """Too many steps in a row were not finite."""


@dataclass(slots=True)
class Clock:
    """Seconds of this session's loop: when it started, and how much of it was waiting for data."""

    started: float = 0.0
    idle: float = 0.0


class Loop:
    """Owns the policy version. Invariant: the version is announced only after the fleet serves it."""

    def __init__(
        self,
        *,
        config: RunConfig,
        run_dir: Path,
        training: TrainingStep,
        publisher: Publisher,
        evaluator: Evaluator,
        replay: ReplayClient,
        report: Report,
        weights: asyncio.Lock,
        version: int,
        model_fingerprint: str,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._config = config
        self._run_dir = run_dir
        self._training = training
        self._publisher = publisher
        self._evaluator = evaluator
        self._replay = replay
        self._report = report
        self._weights = weights
        self._fingerprint = model_fingerprint
        self._metrics = metrics
        self._log = log
        self._bad_in_a_row = 0
        self._saved = version or None
        self._prefetch = Prefetch(replay, steps=config.learner.steps)
        self._holding = False
        self._clock = Clock()
        self._generated = Generated() if version == 0 else None  # unknown after a restart
        self._recent: Generated | None = None
        self.version = version

    async def run(self, stop: asyncio.Event) -> None:
        """Train until the configured steps are done or `stop` is set; leaves a checkpoint either way.

        Errors: Starved, Diverged, Unreachable.
        """
        if self.version == 0 and not stop.is_set():
            await self._evaluator.evaluate(0, stop)
        self._clock = Clock(started=time.monotonic())
        try:
            while self.version < self._config.learner.steps and not stop.is_set():
                await self._step(stop)
        except (Starved, Diverged):
            await self._checkpoint()
            raise
        finally:
            await self._prefetch.drop()
        seconds = time.monotonic() - self._clock.started
        await self._checkpoint()
        await self._evaluator.settle(stop)
        finished = self.version >= self._config.learner.steps
        if finished and self._evaluator.last_step != self.version:
            await self._evaluator.evaluate(self.version, stop)
            finished = self._evaluator.last_step == self.version or not stop.is_set()
        if finished:
            await asyncio.to_thread(save_model, self._training.policy, self._run_dir / "model")
        self._report.event(
            "finished" if finished else "interrupted",
            step=self.version,
            loop_seconds=seconds,
            idle_seconds=self._clock.idle,
        )

    async def _step(self, stop: asyncio.Event) -> None:
        began = time.monotonic()
        groups = await self._next_batch(stop)
        if groups is None:
            return
        sampled = time.monotonic()
        try:
            result = await self._train(groups, stop)
        except Abandoned:
            await self._replay.release(groups)
            return
        before, self._generated = self._generated, await self._replay.ack(groups, self.version + 1)
        self._recent = None if before is None else self._generated.since(before)
        self.version += 1
        trained = time.monotonic()
        published = await self._publish()
        ended = time.monotonic()
        self._clock.idle += sampled - began
        timing = Timing(
            elapsed=ended - self._clock.started,
            wait=sampled - began,
            train=trained - sampled,
            publish=ended - trained,
        )
        self._report_step(groups, result, published, timing)
        await self._after_step()

    async def _next_batch(self, stop: asyncio.Event) -> list[Group] | None:
        """The next batch; None when the run is being stopped. Errors: Starved, Unreachable."""
        patience = self._config.learner.sample_timeout_seconds
        try:
            with self._metrics.waiting("batch"):
                return await self._prefetch.take(self.version, stop, patience_seconds=patience)
        except TimeoutError as error:
            raise Starved(
                f"no batch of {self._config.learner.groups_per_step} groups within {patience:g} s: "
                "are rollout workers running?"
            ) from error

    async def _train(self, groups: Sequence[Group], stop: asyncio.Event) -> StepResult:
        """Train in a thread. From the first change of weights until `_publish`, nobody else reads them.

        Errors: Abandoned when `stop` is set before that change; Diverged.
        """
        loop = asyncio.get_running_loop()

        def update(change: Callable[[], None]) -> None:
            asyncio.run_coroutine_threadsafe(self._hold_weights(), loop).result()
            change()

        if self._config.learner.least_step_seconds:
            await _wait(stop, self._config.learner.least_step_seconds)
        result = await asyncio.to_thread(
            self._training.train,
            groups,
            version=self.version,
            update=update,
            stopped=stop.is_set,
            unvaried_share=self._recent.unvaried_share if self._recent else None,
        )
        self._bad_in_a_row = 0 if result.updates else self._bad_in_a_row + 1
        if result.bad:
            self._log.error(
                "step was not finite and changed nothing", step=self.version + 1, loss=result.loss
            )
        if self._bad_in_a_row >= self._config.learner.max_bad_steps:
            await self._replay.release(groups)
            raise Diverged(
                f"{self._bad_in_a_row} steps in a row were not finite; version {self.version} is still "
                "served. Lower learner.learning_rate, or look at metrics.jsonl"
            )
        return result

    async def _hold_weights(self) -> None:
        if not self._holding:
            await self._weights.acquire()
            self._holding = True

    async def _publish(self) -> Published:
        """Give the changed weights their version and bring it to the fleet."""
        await self._hold_weights()
        try:
            published = await self._publisher.publish(self.version)
        finally:
            self._weights.release()
            self._holding = False
        await self._replay.announce(self.version)
        return published

    def _report_step(
        self, groups: Sequence[Group], result: StepResult, published: Published, timing: Timing
    ) -> None:
        weights: dict[str, float] = {reward.name: reward.weight for reward in self._config.rewards}
        row = self._report.step(
            self.version, groups, result, published, timing, weights=weights, generated=self._recent
        )
        self._report.samples(self.version, groups, count=self._config.learner.samples_per_step)
        self._log.info(
            "step",
            step=self.version,
            reward=row["reward_mean"],
            staleness=row["staleness_mean"],
            seconds=timing.total,
        )
        if result.collapsing:
            self._log.warning(
                "the policy looks like collapsing: token entropy, distinct n-grams and the spread of rewards "
                "have fallen together",
                step=self.version,
            )

    async def _after_step(self) -> None:
        every = self._config.evaluation.every_steps
        if every and self.version % every == 0 and self.version < self._config.learner.steps:
            self._evaluator.begin(self.version)
        if self.version % self._config.learner.checkpoint.every_steps == 0:
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        """Make the current version durable; on a full disk the run goes on with the last one."""
        if self._saved == self.version:
            return
        root = self._run_dir / "checkpoints"
        training = self._training
        memory = training.memory.to_dict()
        state = State(version=self.version, model_fingerprint=self._fingerprint, memory=memory)
        moving = training.reference is not None and training.reference.moves
        try:
            with self._metrics.timing("step_seconds", phase="checkpoint"):
                await asyncio.to_thread(
                    save_checkpoint,
                    root,
                    training.policy,
                    training.optimizer,
                    state,
                    reference=training.reference.policy if moving and training.reference else None,
                    critic=training.critic,
                )
        except OSError as error:
            self._log.error("checkpoint not written; the last one stays", step=self.version, error=str(error))
            return
        self._saved = self.version
        with suppress(OSError):
            await asyncio.to_thread(prune, root, keep=self._config.learner.checkpoint.keep)
        await self._replay.confirm_checkpoint(self.version)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    """Wait, but not beyond `stop`."""
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
