"""The rounds of a stage that samples first and trains afterwards.

    ┌─▶ sample all groups of the round ─▶ learn ─▶ keep the model ─▶ publish ─▶ evaluate ─┐
    └─────────────────────────────────────────────────────────────────────────────────────┘

A round makes one policy version, as a step of reinforcement learning does, and is synchronous: all of its
groups are sampled from the version before it. It waits for groups (bounded by learner.sample_timeout_seconds;
unblocked by inserts), for the publication and for the evaluation (both bounded). The model of the last round
is durable; replay hands the groups of a lost round out again (invariant 6).
"""

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from slipstream.config import RunConfig
from slipstream.learner.checkpoints.checkpoint import write_whole
from slipstream.learner.clients import ReplayClient
from slipstream.learner.policy.model import Policy
from slipstream.learner.report import Report
from slipstream.learner.stages import supervised, verified
from slipstream.learner.starvation import SampleDeadline, StarvationReport, Starved
from slipstream.parallel import beside
from slipstream.records import Group
from slipstream.telemetry.logs import Log

CHUNK_GROUPS = 32
LINE_EVERY_SECONDS = 3.0


class Training(Protocol):
    """The training of a round on its groups."""

    def learn(
        self,
        groups: Sequence[Group],
        *,
        version: int,
        report: supervised.Progress,
        stopped: Callable[[], bool],
    ) -> verified.RoundResult:
        """Train on the groups; blocks. Errors: NothingKept, Interrupted, NotFinite."""
        ...


class Delivery(Protocol):
    """Publication and evaluation of a new version."""

    async def publish(self, version: int) -> int:
        """Publish the version, if the rollouts serve the policy; return how many rollouts there are."""
        ...

    async def evaluate(self, version: int, stop: asyncio.Event) -> None:
        """Evaluate the version on held-out prompts, and report."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Seconds of a round by phase."""

    sample: float
    train: float
    publish: float


class Rounds:
    """Owns the policy version. Invariant: round `v + 1` trains on answers of version `v` alone."""

    def __init__(
        self,
        *,
        config: RunConfig,
        run_dir: Path,
        policy: Policy,
        training: Training,
        delivery: Delivery,
        replay: ReplayClient,
        report: Report,
        weights: asyncio.Lock,
        version: int,
        log: Log,
    ) -> None:
        self._config = config
        self._run_dir = run_dir
        self._policy = policy
        self._training = training
        self._delivery = delivery
        self._replay = replay
        self._report = report
        self._weights = weights
        self._log = log
        self._deadline = SampleDeadline(config.learner, config.rollout)
        self._next_line = 0.0
        self._started = time.monotonic()
        self._waited = 0.0
        self.version = version

    async def run(self, stop: asyncio.Event) -> None:
        """Run all rounds, or until `stop` is set. Errors: Starved, NothingKept, NotFinite, Unreachable."""
        await self._delivery.evaluate(self.version, stop)
        try:
            while self.version < self._rounds and not stop.is_set():
                await self._round(stop)
        except supervised.Interrupted:
            self._log.info("round abandoned; a restart repeats it", round=self.version + 1)
        finished = self.version >= self._rounds and not stop.is_set()
        if finished:
            await asyncio.to_thread(write_whole, self._policy.save, self._run_dir / "model")
        self._report.event(
            "finished" if finished else "interrupted",
            step=self.version,
            loop_seconds=time.monotonic() - self._started,
            idle_seconds=self._waited,
        )

    @property
    def _rounds(self) -> int:
        return self._config.learner.steps

    async def _round(self, stop: asyncio.Event) -> None:
        began = time.monotonic()
        groups = await self._gather(stop)
        sampled = time.monotonic()
        self._waited += sampled - began
        async with self._weights:  # so that no weights are sent while they change
            learned = await self._learn(groups, stop)
            await asyncio.to_thread(self._keep, learned)
            self.version += 1
            await self._replay.confirm_checkpoint(self.version)
            trained = time.monotonic()
            rollouts = await self._delivery.publish(self.version)
        seconds = Seconds(sample=sampled - began, train=trained - sampled, publish=time.monotonic() - trained)
        self._report.event("step", **self._row(groups, learned, seconds, rollouts))
        self._report.samples(self.version, groups, count=self._config.learner.samples_per_step)
        self._progress(
            ", ".join(f"{number:,} {name}" for name, number in learned.counts.items()), self.version
        )
        if self.version < self._rounds:
            await self._replay.announce(self.version)
        await self._delivery.evaluate(self.version, stop)

    async def _gather(self, stop: asyncio.Event) -> list[Group]:
        """Return all groups of the round. Errors: Interrupted, Starved, Unreachable."""
        number, wanted = self.version + 1, self._config.learner.groups_per_step
        groups: list[Group] = []
        while len(groups) < wanted:
            part = await self._next(min(CHUNK_GROUPS, wanted - len(groups)), stop)
            await self._replay.ack(part, self.version + 1)
            groups += part
            self._progress(
                f"sampled {len(groups):,} of {wanted:,} prompts", number, last=len(groups) == wanted
            )
        return groups

    async def _next(self, count: int, stop: asyncio.Event) -> list[Group]:
        seconds = self._deadline.seconds
        starvation = StarvationReport(self._replay, self._log, say=self._say)
        try:
            async with beside(starvation.watch()):
                groups = await starvation.outlast_pauses(partial(self._sample, count, stop), seconds)
        except TimeoutError as error:
            why = await starvation.explain()
            raise Starved(f"no {count} groups within {seconds:g} s ({self._deadline.keys}): {why}") from error
        self._deadline.groups_came()
        return groups

    async def _sample(self, count: int, stop: asyncio.Event, seconds: float) -> list[Group]:
        """Return so many groups. Errors: TimeoutError after `seconds`, Interrupted, Unreachable."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if stop.is_set():
                raise supervised.Interrupted
            if groups := await self._replay.sample(self.version, groups=count):
                return groups
        raise TimeoutError

    async def _learn(self, groups: Sequence[Group], stop: asyncio.Event) -> verified.RoundResult:
        loop, number = asyncio.get_running_loop(), self.version + 1

        def report(step: int, steps: int, loss: float) -> None:
            text = f"optimizer step {step:,}/{steps:,}  loss {loss:.3f}"
            loop.call_soon_threadsafe(lambda: self._progress(text, number, last=step == steps))

        return await asyncio.to_thread(
            self._training.learn, groups, version=self.version, report=report, stopped=stop.is_set
        )

    def _keep(self, learned: verified.RoundResult) -> None:
        """Write the training set, then the model, whose folder makes the round durable."""
        rows, done = round_rows(self._run_dir, self.version + 1), rounds_of(self._run_dir)
        rows.parent.mkdir(exist_ok=True)
        unfinished = rows.with_suffix(".partial")
        unfinished.write_text("".join(f"{json.dumps(row)}\n" for row in learned.rows), encoding="utf-8")
        unfinished.rename(rows)
        write_whole(partial(self._policy.save, dtype=torch.float32), rows.with_suffix(""))
        for path in done:
            shutil.rmtree(path, ignore_errors=True)

    def _row(
        self, groups: Sequence[Group], learned: verified.RoundResult, seconds: Seconds, rollouts: int
    ) -> dict[str, object]:
        answers = [answer for group in groups for answer in group.completions if not answer.withheld]
        weights: dict[str, float] = {reward.name: reward.weight for reward in self._config.rewards}
        total = sum(weights[reward.name] * reward.value for answer in answers for reward in answer.rewards)
        total_seconds = seconds.sample + seconds.train + seconds.publish
        return {
            "step": self.version,
            "version": self.version,
            "loss": learned.loss,
            "reward_mean": total / max(1, len(answers)),
            "completions": len(answers),
            "completions_with_several_versions": 0,
            "completions_stale": 0,
            "staleness_mean": 0.0,
            "staleness_max": 0,
            "optimizer_steps": learned.steps,
            "tokens_trained": learned.tokens,
            "tokens_per_second": learned.tokens / max(total_seconds, 1e-9),
            "idle_fraction": seconds.sample / max(total_seconds, 1e-9),
            "elapsed_seconds": time.monotonic() - self._started,
            "wait_seconds": seconds.sample,
            "train_seconds": seconds.train,
            "publish_seconds": seconds.publish,
            "workers": rollouts,
            "kept": dict(learned.counts),
        }

    def _progress(self, text: str, number: int, *, last: bool = True) -> None:
        """Report progress, at most once every few seconds unless it is the last line of a phase."""
        if last or time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_EVERY_SECONDS
            self._say(f"round {number}/{self._rounds}: {text}")

    def _say(self, text: str) -> None:
        self._report.event("progress", text=text)


def round_rows(run_dir: Path, number: int) -> Path:
    """Return the file of a round's training set; its model is beside it, without the suffix."""
    return run_dir / "rounds" / f"round_{number:04d}.jsonl"


def rounds_of(run_dir: Path) -> list[Path]:
    """Return the models of complete rounds, oldest first."""
    return sorted(path.parent for path in (run_dir / "rounds").glob("round_*/config.json"))


def number_of(model: Path) -> int:
    """Return the number of the round that made a model."""
    return int(model.name.removeprefix("round_"))
