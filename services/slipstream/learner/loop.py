"""The learner's loop: sample, train, acknowledge, publish, announce. It never waits for one rollout.

    ┌─▶ sample ─▶ train ─▶ ack ─▶ publish ─▶ announce ─▶ checkpoint, evaluate ─┐
    │     ▲ prefetched, with the teacher's logprobs, while training            │
    └──────────────────────────────────────────────────────────────────────────┘

It waits for a full batch (bounded by learner.sample_timeout_seconds, without the time in which an operator
has paused admission; unblocked by inserts), with a teacher
for its logprobs of the batch (bounded by teacher.patience_seconds), and for the publication of the version,
or of the version before with weights.overlap (bounded by weights.timeout_seconds). torch runs in a thread,
gRPC in the event loop.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from slipstream.config import RunConfig
from slipstream.learner import clients, evaluation, filtered_groups, prefetch, save_requests, saving
from slipstream.learner.broadcast.publisher import Published
from slipstream.learner.checkpoints.checkpoint import latest_checkpoint
from slipstream.learner.export import export
from slipstream.learner.lockstep import Lockstep
from slipstream.learner.publishing import Publishing
from slipstream.learner.report import Report, Timing
from slipstream.learner.starvation import SampleDeadline, StarvationReport, Starved
from slipstream.learner.teacher import TeacherClient, UnfitTeacher
from slipstream.learner.training import gradients, record
from slipstream.parallel import beside, both
from slipstream.records import Cursor, Generated, Group, StepTimes
from slipstream.rpc.errors import SlipstreamError, Unreachable
from slipstream.samples.timeline.writer import NO_TIMELINE, Timeline
from slipstream.samples.writer import SampleWriter
from slipstream.telemetry import clock, logs
from slipstream.telemetry.metrics import Metrics


class Diverged(SlipstreamError):
    """Too many steps in a row changed nothing, because they were not finite."""


@dataclass(slots=True)
class Clock:
    """When the loop started (time.monotonic), and its seconds of waiting for data."""

    started: float = 0.0
    idle: float = 0.0


class Loop:
    """Owns the policy version. Invariant: the version is announced only after the fleet serves it."""

    def __init__(
        self,
        *,
        config: RunConfig,
        run_dir: Path,
        lockstep: Lockstep,
        publishing: Publishing,
        saver: saving.Saver,
        evaluator: evaluation.Evaluator,
        replay: clients.ReplayClient,
        teacher: TeacherClient | None = None,
        report: Report,
        samples: SampleWriter | None = None,
        timeline: Timeline = NO_TIMELINE,
        version: int,
        cursor: Cursor,
        unvaried_share: float | None,
        metrics: Metrics,
        log: logs.Log,
    ) -> None:
        self._config = config
        self._run_dir = run_dir
        self._lockstep = lockstep
        self._publishing = publishing
        self._saver = saver
        self._evaluator = evaluator
        self._replay = replay
        self._report = report
        self._samples = samples
        self._timeline = timeline
        self._metrics = metrics
        self._log = log
        self._bad_in_a_row = 0
        teach = None if teacher is None else teacher.teach
        self._prefetch = prefetch.Prefetch(replay, steps=config.learner.steps, log=log, teach=teach)
        self._taught = teacher is not None
        self._deadline = SampleDeadline(config.learner, config.rollout)
        self._clock = Clock()
        self._cursor = cursor
        self._unvaried_share = unvaried_share
        self._filtered = filtered_groups.FilteredGroups(replay, log)
        self._weights = save_requests.SteadyWeights()
        self._settled = True  # False between a step and its ack, when the weights are newer than `version`
        self.version = version
        metrics.set("trained_version", version)

    async def run(self, stop: asyncio.Event) -> None:
        """Train until the configured steps are done or `stop` is set; write a checkpoint in both cases.

        If replay goes away while the run is being stopped, and the checkpoint is durable, that is no error.
        Errors: Starved, Diverged, Unreachable.
        """
        try:
            await self._run(stop)
        except Unreachable as error:
            if not stop.is_set() or self._saver.durable != self.version:
                raise
            self._log.warning("stopped without replay", step=self.version, error=str(error))

    async def save(self) -> int:
        """Write a checkpoint between two steps, at once while no step runs; return its version when durable.

        Errors: NotSaved, RankLost.
        """
        async with self._weights.unchanged():
            version = self.version
            await self._saver.begin(version, self._cursor, self._unvaried_share)
        return await self._saver.durable_since(version)

    async def _run(self, stop: asyncio.Event) -> None:
        if self.version == 0 and not stop.is_set():
            await self._evaluator.evaluate(0, stop)
        self._clock = Clock(started=time.monotonic())
        try:
            while self.version < self._config.learner.steps and not stop.is_set():
                await self._step(stop)
        except (Starved, Diverged, Unreachable, UnfitTeacher):
            if self._settled:
                await self._saver.save(self.version, self._cursor, self._unvaried_share)
            raise
        finally:
            await self._store_taken()
            await self._release_prefetched()
        seconds = time.monotonic() - self._clock.started
        await self._saver.save(self.version, self._cursor, self._unvaried_share)
        await self._store_last_filtered()
        await self._publishing.settle()
        finished = await self._evaluate_last(stop)
        if finished:
            await self._write_model()
            self._metrics.set("run_finished", 1)
        self._report.event(
            "finished" if finished else "interrupted",
            step=self.version,
            loop_seconds=seconds,
            idle_seconds=self._clock.idle,
        )

    async def _release_prefetched(self) -> None:
        """Release the prefetched batch. When that fails, replay does it when a learner attaches."""
        try:
            failure = await self._prefetch.release()
        except Unreachable as error:
            self._log.warning("prefetched batch not released", error=str(error))
        else:
            if failure is not None:
                self._log.warning("next batch not fetched", error=f"{type(failure).__name__}: {failure}")

    async def _evaluate_last(self, stop: asyncio.Event) -> bool:
        """Evaluate the last version; return False if the run is not finished."""
        await self._evaluator.settle(stop)
        if self.version < self._config.learner.steps:
            return False
        if self._evaluator.last_step == self.version:
            return True
        await self._evaluator.evaluate(self.version, stop)
        return self._evaluator.last_step == self.version or not stop.is_set()

    async def _write_model(self) -> None:
        """Write the last checkpoint as a Hugging Face directory. Errors: OSError."""
        newest = latest_checkpoint(self._run_dir / "checkpoints")
        if newest is None or self._saver.durable != self.version:
            raise OSError(
                f"{self._run_dir / 'model'} is not written: there is no checkpoint of step {self.version}; "
                "make room, and resume the run"
            )
        await asyncio.to_thread(export, newest, self._run_dir / "model", replace=True)

    async def _step(self, stop: asyncio.Event) -> None:
        began = time.monotonic()
        with self._timeline.during("wait", step=self.version + 1):
            groups = await self._next_batch(stop)
        if groups is None:
            return
        sampled = time.monotonic()
        if self._samples is not None:
            self._filtered.begin()
        async with self._weights.changing():
            try:
                with self._timeline.during("train", step=self.version + 1):
                    result = await self._train(groups, stop)
            except gradients.Abandoned:
                await self._replay.release(groups)
                return
            trained = time.monotonic()
            generated, published = await self._settle_step(groups)
        ended = time.monotonic()
        self._clock.idle += sampled - began
        timing = Timing(
            elapsed=ended - self._clock.started,
            wait=sampled - began,
            train=trained - sampled,
            publish=ended - trained,
            checkpoint=self._saver.held_seconds(),
            copy_wait=self._lockstep.copy_wait_seconds(),
        )
        self._report_step(groups, generated, result, published, timing)
        offset = clock.epoch_offset()
        times = StepTimes(training=sampled + offset, trained=trained + offset)
        self._timeline.trained(self.version, groups, times)
        if self._samples is not None:
            filtered = self._filtered.taken()
            self._samples.put(self.version, groups, result.token_values, filtered=filtered, times=times)
        await self._after_step()

    async def _settle_step(self, groups: Sequence[Group]) -> tuple[Generated, Published]:
        """Acknowledge a batch, and publish the new version in parallel.

        Errors: RankLost, TrainedTwice, Unreachable.
        """
        version = self.version + 1
        return await both(self._acknowledge(groups, version), self._publishing.publish(version))

    async def _acknowledge(self, groups: Sequence[Group], version: int) -> Generated:
        """Tell replay that the groups made `version`, which is the loop's version from then on."""
        self._settled = False
        generated, self._cursor = await self._replay.ack(groups, version)
        self._unvaried_share = generated.unvaried_share
        self.version = version
        self._settled = True
        self._metrics.set("trained_version", version)
        return generated

    async def _next_batch(self, stop: asyncio.Event) -> list[Group] | None:
        """Return the next batch; None when the run is being stopped.

        Errors: Starved, Unreachable, UnfitTeacher, and those of a publication in the background.
        """
        await self._sampled(stop)
        self._deadline.groups_came()
        seconds = self._deadline.seconds
        with self._metrics.waiting("teacher") if self._taught else nullcontext():
            taking = self._prefetch.take(self.version, stop, patience_seconds=seconds)
            return await self._publishing.race_with_publication(taking)

    async def _sampled(self, stop: asyncio.Event) -> None:
        """Wait until a batch is sampled, or the run is being stopped.

        Errors: Starved, and those of a publication in the background.
        """
        seconds = self._deadline.seconds
        starvation = StarvationReport(
            self._replay, self._log, say=lambda text: self._report.event("progress", text=text)
        )

        async def sampled(left: float) -> None:
            await self._prefetch.sampled(self.version, stop, patience_seconds=left)

        self._metrics.set("learner_waiting", 1)
        try:
            async with beside(starvation.watch()):
                with self._metrics.waiting("batch"):
                    waiting = starvation.outlast_pauses(sampled, seconds)
                    await self._publishing.race_with_publication(waiting)
        except TimeoutError as error:
            raise Starved(
                f"no batch of {self._config.learner.groups_per_step} groups within {seconds:g} s "
                f"({self._deadline.keys}): {await starvation.explain()}"
            ) from error
        finally:
            self._metrics.set("learner_waiting", 0)

    async def _train(self, groups: Sequence[Group], stop: asyncio.Event) -> record.StepResult:
        """Train in a thread. Errors: Abandoned if `stop` is set before the first change; Diverged."""
        if self._config.learner.least_step_seconds:
            await _wait(stop, self._config.learner.least_step_seconds)
        result = await self._lockstep.train(
            groups,
            version=self.version,
            stopped=stop.is_set,
            unvaried_share=self._unvaried_share,
        )
        self._bad_in_a_row = self._bad_in_a_row + 1 if result.bad and not result.updates else 0
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

    async def _store_last_filtered(self) -> None:
        """Store with the last step what was filtered since. A run that goes on later takes it then."""
        if self._samples is None or self.version < self._config.learner.steps:
            return
        self._filtered.begin()
        await self._store_taken()

    async def _store_taken(self) -> None:
        """Store with the last step what a step took from replay that did not end. The run ends."""
        if self._samples is None:
            return
        self._samples.take_all()
        await self._filtered.settle()
        if filtered := self._filtered.taken():
            self._samples.put(self.version, [], None, filtered=filtered)

    def _report_step(
        self,
        groups: Sequence[Group],
        generated: Generated,
        result: record.StepResult,
        published: Published,
        timing: Timing,
    ) -> None:
        weights: dict[str, float] = {reward.name: reward.weight for reward in self._config.rewards}
        row = self._report.step(
            self.version, groups, result, published, timing, weights=weights, generated=generated
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
                "the policy may be collapsing: token entropy, distinct n-grams and the spread of rewards "
                "have fallen together",
                step=self.version,
            )

    async def _after_step(self) -> None:
        every = self._config.evaluation.every_steps
        if every and self.version % every == 0 and self.version < self._config.learner.steps:
            self._evaluator.begin(self.version)
        if self._saver.due(self.version):
            await self._saver.begin(self.version, self._cursor, self._unvaried_share)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    """Wait this long, or until `stop` is set."""
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
