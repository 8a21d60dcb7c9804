"""A simulated run: a learner, an admission gate, and rollouts that take minutes to start.

    admission ─▶ rollout: groups share its tokens a second ─▶ buffer ─▶ learner: train, publish ─▶ admission

A rollout with n groups samples `peak · n / (n + half)` tokens a second: with more groups, each one is slower.
Times are in seconds of the simulation.
"""

import heapq
import random
from dataclasses import dataclass, field
from typing import Literal

TICK_SECONDS = 1.0
READINESS_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A run in numbers. `tokens` are those of a group, `spread` the deviation of their logarithm."""

    train_seconds: float = 60.0
    publish_seconds: float = 6.0
    groups_per_step: int = 32
    pipeline_depth: int = 6
    places: int = 8
    peak: float = 6000.0
    half: float = 4.0
    tokens: float = 60_000.0
    spread: float = 0.6
    filtered: float = 0.1
    start_seconds: float = 240.0
    steps: int = 10**9

    def needed_workers(self, *, longer: float = 1.0) -> float:
        """Return the least number of rollouts with which the learner never waits."""
        cycle = self.train_seconds + self.publish_seconds
        groups = self.groups_per_step / cycle / (1 - self.filtered)
        speed = self.peak * self.places / (self.places + self.half) * self.train_seconds / cycle
        return groups * self.tokens * longer / speed


@dataclass(slots=True, kw_only=True)
class Worker:
    """A rollout. `progress` is the number of tokens of each group; a group ends at its length."""

    name: str
    pool: str
    serves_at: float
    progress: float = 0.0
    groups: list[tuple[float, int]] = field(default_factory=list)


class Fleet:
    """The state of the run; counters are those of its whole life, `busy` is in seconds by phase.

    Invariant: accepted + running ≤ (pipeline_depth + version + 1) · groups_per_step.
    """

    def __init__(self, shape: Shape, *, seed: int = 0) -> None:
        self.shape = shape
        self.time = 0.0
        self.longer = 1.0
        self.version = 0
        self.waited = 0.0
        self.learner: Literal["absent", "waiting", "training", "publishing"] = "waiting"
        self.workers: list[Worker] = []
        self._random = random.Random(seed)
        self._until = 0.0
        self.made = self.inserted = self.filtered = self.consumed = self.steps = 0
        self.busy = {"train": 0.0, "publish": 0.0}

    @property
    def accepted(self) -> int:
        """Return the number of groups in the buffer and of trained ones."""
        return self.inserted - self.filtered

    @property
    def buffered(self) -> int:
        """Return the number of groups that the learner could take now."""
        return self.accepted - self.consumed

    @property
    def admissible(self) -> int:
        """Return the number of groups that may be started."""
        running = sum(len(worker.groups) for worker in self.workers)
        limit = (self.shape.pipeline_depth + self.version + 1) * self.shape.groups_per_step
        return max(0, limit - self.accepted - running)

    def ready(self, pool: str) -> int:
        """Return the number of ready pods."""
        return sum(w.pool == pool and w.serves_at + READINESS_SECONDS <= self.time for w in self.workers)

    def resize(self, pool: str, replicas: int) -> None:
        """Start or end pods as a Deployment does: it ends unready pods first, then the youngest."""
        mine = sorted((w for w in self.workers if w.pool == pool), key=lambda w: w.serves_at)
        for worker in mine[replicas:]:
            self.workers.remove(worker)
        for _ in range(replicas - len(mine)):
            self.made += 1
            delay = self.shape.start_seconds * self._random.uniform(0.75, 1.25)
            self.workers.append(Worker(name=f"w{self.made}", pool=pool, serves_at=self.time + delay))

    def lose(self, share: float) -> None:
        """Remove a share of the rollouts, with their groups, as when spot nodes are lost."""
        self.workers = self.workers[: round(len(self.workers) * (1 - share))]

    def stop_learner(self) -> None:
        """Stop the learner's pod."""
        self.learner = "absent"

    def start_learner(self) -> None:
        """Start the learner's pod, attached to replay."""
        self.learner = "waiting"

    def tick(self) -> None:
        """Simulate one second."""
        self.time += TICK_SECONDS
        self._learn()
        free = self.admissible
        for worker in self.workers:
            if worker.serves_at > self.time:
                continue
            if self.learner != "publishing":
                self._generate(worker)
            while free > 0 and len(worker.groups) < self.shape.places:
                heapq.heappush(worker.groups, (worker.progress + self._work(), free))
                free -= 1

    def _work(self) -> float:
        spread = self.shape.spread
        drawn = self._random.lognormvariate(-spread * spread / 2, spread)
        return self.shape.tokens * self.longer * drawn

    def _generate(self, worker: Worker) -> None:
        running = len(worker.groups)
        if running:
            worker.progress += self.shape.peak / (running + self.shape.half) * TICK_SECONDS
        while worker.groups and worker.groups[0][0] <= worker.progress:
            heapq.heappop(worker.groups)
            self.inserted += 1
            self.filtered += self._random.random() < self.shape.filtered

    def _learn(self) -> None:
        if self.learner == "training" and self.time >= self._until:
            self.learner, self._until = "publishing", self.time + self.shape.publish_seconds
        elif self.learner == "publishing" and self.time >= self._until:
            self.busy["train"] += self.shape.train_seconds
            self.busy["publish"] += self.shape.publish_seconds
            self.steps += 1
            self.version += 1
            self.learner = "waiting"
        if self.learner == "waiting" and self.buffered >= self.shape.groups_per_step:
            self.consumed += self.shape.groups_per_step
            self.learner, self._until = "training", self.time + self.shape.train_seconds
        self.waited += TICK_SECONDS if self.learner == "waiting" else 0.0
