"""Autoscaling by pressure against autoscaling by depth: simulated fleets, the real recording rules, side by side.

    python benchmarks/autoscaling.py [--hours H] [--docs]

Each scenario is a learner, an admission gate, rollouts that take minutes to start, KEDA and an HPA. The rules
of deploy/prometheus/pressure.yaml are evaluated as they stand on what the simulated pods export.
"""

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autoscaler import SYNC_SECONDS, Autoscaler, Behavior, Direction
from fleet import SCRAPE_SECONDS, Fleet, Shape
from promql import Rules, compile_text
from promql_series import Store

ROOT = Path(__file__).resolve().parents[1]
RULES = ROOT / "deploy" / "prometheus" / "pressure.yaml"
QUERY = (
    'max(slipstream:pressure{{namespace="training", release="run", pool="{pool}"}}) '
    'or max(slipstream:pressure{{namespace="training", release="run", pool=""}})'
)
"""What the trigger of a pool asks; the README of deploy/prometheus has the same."""

OURS = Behavior(
    up=Direction(window=0, percent=100, pods=4, period=60),
    down=Direction(window=0, percent=20, pods=1, period=300),
)
Signal = Callable[[Fleet, Store], float | None]
Event = Callable[["Simulation"], None]


@dataclass(slots=True, kw_only=True)
class Simulation:
    """A fleet with an autoscaler for each of its pools; what happens when is in `events`, by second."""

    shape: Shape = Shape()
    signal: Mapping[str, Signal]
    behavior: Behavior = OURS
    threshold: float = 1.0
    most: int = 24
    static: Mapping[str, int] = field(default_factory=dict)
    events: Mapping[float, Event] = field(default_factory=dict)
    seed: int = 0
    fleet: Fleet = field(init=False)
    store: Store = field(init=False)
    scalers: dict[str, Autoscaler] = field(init=False)
    history: list[tuple[float, int, float, float | None]] = field(default_factory=list)

    def run(self, hours: float) -> "Simulation":
        """Play it; `history` has time, workers that serve, seconds waited so far, and the last signal."""
        self.fleet, self.store = Fleet(self.shape, seed=self.seed), Store()
        self.scalers = {pool: Autoscaler(behavior=self.behavior, most=self.most) for pool in self.signal}
        for pool, replicas in self.static.items():
            self.fleet.resize(pool, replicas)
        rules, coming = Rules(RULES), sorted(self.events.items())
        while self.fleet.time < hours * 3600:
            self.fleet.tick()
            while coming and coming[0][0] <= self.fleet.time:
                coming.pop(0)[1](self)
            if self.fleet.time % SCRAPE_SECONDS == 0:
                self.fleet.scrape(self.store)
            if self.fleet.time % SCRAPE_SECONDS == 7:
                rules.evaluate(self.store, self.fleet.time)
            if self.fleet.time % SYNC_SECONDS == 11:
                self._sync()
        return self

    def _sync(self) -> None:
        value: float | None = None
        for pool, scaler in self.scalers.items():
            value = self.signal[pool](self.fleet, self.store)
            if value is None:
                continue
            replicas = scaler.sync(self.fleet.time, value=value / self.threshold, ready=self.fleet.ready(pool))
            self.fleet.resize(pool, replicas)
        serving = sum(worker.serves_at <= self.fleet.time for worker in self.fleet.workers)
        self.history.append((self.fleet.time, serving, self.fleet.waited, value))

    def wait_share(self, start: float, end: float) -> float:
        """Share of the time between two hours that the learner waited."""
        inside = [row for row in self.history if start * 3600 <= row[0] <= end * 3600]
        return (inside[-1][2] - inside[0][2]) / (inside[-1][0] - inside[0][0])

    def workers(self, start: float, end: float) -> float:
        """Mean number of pods between two hours, starting ones included."""
        inside = [row[1] for row in self.history if start * 3600 <= row[0] <= end * 3600]
        return sum(inside) / len(inside)

    def changes(self, start: float, end: float) -> int:
        """Scale events between two hours, of all pools."""
        every = [event for scaler in self.scalers.values() for event in scaler.events]
        return sum(start * 3600 <= at <= end * 3600 for at, _, _ in every)


def pressure(pool: str) -> Signal:
    """What KEDA gets for a pool; None when there are no data, for which it has a fallback."""
    query = compile_text(QUERY.format(pool=pool))

    def ask(fleet: Fleet, store: Store) -> float | None:
        return next(iter(query(store, fleet.time).values()), None)

    return ask


def open_slots(fleet: Fleet, store: Store) -> float:
    """Depth rule one: a worker for each `places` groups that may be started, as a queue-length trigger."""
    pods = max(1, len(fleet.workers))
    return max(0.01, fleet.admissible / fleet.shape.places / pods)


def buffer_depth(fleet: Fleet, store: Store) -> float:
    """Depth rule two: as many workers as keep one batch of finished groups in the buffer."""
    return min(4.0, max(0.25, fleet.shape.groups_per_step / max(1, fleet.buffered)))



def lose_half(s): s.fleet.lose(0.5)
def longer(s): s.fleet.longer=2.0
def shorter(s): s.fleet.longer=0.5
def stop(s): s.fleet.stop_learner()
def start(s): s.fleet.start_learner()
if __name__ == "__main__":
    import sys, itertools
    P={"spot":pressure("spot")}
    def show(label, s, a=2,b=4):
        need=s.shape.needed_workers(longer=s.fleet.longer)
        print(f"{label:28} need {need:.1f} wait {s.wait_share(a,b):.3f} workers {s.workers(a,b):.1f} changes {s.changes(a,b)}", [(round(t / 60), y, z) for t, y, z in s.scalers["spot"].events])
    for seed in (0,1,2):
        show(f"seed {seed}", Simulation(signal=P,seed=seed).run(4))
    show("flat engine", Simulation(signal=P,shape=Shape(half=0.5, peak=4300)).run(4))
    show("linear engine", Simulation(signal=P,shape=Shape(half=100, peak=54000)).run(4))
    show("slow start", Simulation(signal=P,shape=Shape(start_seconds=600)).run(4))
    show("long groups", Simulation(signal=P,shape=Shape(tokens=240_000,places=16,half=8, groups_per_step=16),most=40).run(6),3,6)
    show("long steps", Simulation(signal=P,shape=Shape(train_seconds=600,publish_seconds=40,groups_per_step=256,places=32,half=16)).run(6),3,6)
    show("long publish", Simulation(signal=P,shape=Shape(publish_seconds=40)).run(4))
    show("half lost", Simulation(signal=P,events={7200:lose_half}).run(4),3,4)
    show("doubled", Simulation(signal=P,events={7200:longer}).run(5),3.5,5)
    show("halved", Simulation(signal=P,events={7200:shorter}).run(5),3.5,5)
    show("no learner", Simulation(signal=P,events={7200:stop, 10800:start}).run(5),4,5)
    show("restart", Simulation(signal=P,events={7200:stop, 7500:start}).run(4),3,4)
    show("static 6", Simulation(signal=P,static={"fixed":6}).run(4))
