"""A simulated fleet under an autoscaler, second by second: scrape, evaluate the rules, decide, resize."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.autoscaling.autoscaler import SYNC_SECONDS, Autoscaler, Behavior, Direction
from benchmarks.autoscaling.fleet import Fleet, Shape
from benchmarks.autoscaling.fleet_pages import SCRAPE_SECONDS, scrape
from benchmarks.autoscaling.promql import Rules, compile_text
from benchmarks.autoscaling.promql_series import Store

RULES = Path(__file__).resolve().parents[2] / "charts/slipstream/files/rules/pressure.yaml"
EVALUATION_DELAY = 7.0
SYNC_DELAY = 11.0
QUERY = (
    'max(slipstream:pressure{{namespace="training",release="run",pool="{pool}"}}) '
    'or max(slipstream:pressure{{namespace="training",release="run",pool=""}})'
)
"""The query of the trigger of a pool, as in deploy/prometheus/README.md."""

RECOMMENDED = Behavior(
    up=Direction(window=0, percent=100, pods=4, period=60),
    down=Direction(window=0, percent=20, pods=1, period=300),
)
"""The behaviour that deploy/prometheus/README.md recommends; the rule itself is smoothed."""

Signal = Callable[[Fleet, Store], float | None]
"""The factor of the ready pods; None without a result of the query."""

Event = Callable[[Fleet], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The state at one decision: rollouts that serve, and the seconds that the learner has waited so far."""

    time: float
    serving: int
    waited: float


@dataclass(slots=True, kw_only=True)
class Simulation:
    """A fleet, and an autoscaler for each pool that has a signal; `events` are by second."""

    signals: Mapping[str, Signal]
    shape: Shape = field(default_factory=Shape)
    behavior: Behavior = RECOMMENDED
    most: int = 40
    static: Mapping[str, int] = field(default_factory=dict)
    events: Mapping[float, Event] = field(default_factory=dict)
    seed: int = 0
    fleet: Fleet = field(init=False)
    store: Store = field(init=False, default_factory=Store)
    scalers: dict[str, Autoscaler] = field(init=False)
    history: list[Moment] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.fleet = Fleet(self.shape, seed=self.seed)
        self.scalers = {pool: Autoscaler(behavior=self.behavior, most=self.most) for pool in self.signals}
        for pool, replicas in self.static.items():
            self.fleet.resize(pool, replicas)

    def run(self, hours: float) -> "Simulation":
        """Simulate some hours."""
        rules, coming = Rules(RULES), sorted(self.events.items())
        while self.fleet.time < hours * 3600:
            self.fleet.tick()
            while coming and coming[0][0] <= self.fleet.time:
                coming.pop(0)[1](self.fleet)
            if self.fleet.time % SCRAPE_SECONDS == 0:
                scrape(self.fleet, self.store)
            if self.fleet.time % SCRAPE_SECONDS == EVALUATION_DELAY:
                rules.evaluate(self.store, self.fleet.time)
            if self.fleet.time % SYNC_SECONDS == SYNC_DELAY:
                self._sync()
        return self

    def wait_share(self, start: float, end: float) -> float:
        """Share of the time between two hours that the learner waited."""
        inside = self._between(start, end)
        return (inside[-1].waited - inside[0].waited) / (inside[-1].time - inside[0].time)

    def workers(self, start: float, end: float) -> float:
        """Mean number of serving rollouts between two hours."""
        inside = self._between(start, end)
        return sum(moment.serving for moment in inside) / len(inside)

    def changes(self, start: float, end: float) -> int:
        """Return the number of changes of an autoscaler between two hours."""
        every = [event for scaler in self.scalers.values() for event in scaler.events]
        return sum(start * 3600 <= at <= end * 3600 for at, _, _ in every)

    def _between(self, start: float, end: float) -> list[Moment]:
        return [moment for moment in self.history if start * 3600 <= moment.time <= end * 3600]

    def _sync(self) -> None:
        time = self.fleet.time
        for pool, scaler in self.scalers.items():
            value = self.signals[pool](self.fleet, self.store)
            if value is not None:
                self.fleet.resize(pool, scaler.sync(time, value=value, ready=self.fleet.ready(pool)))
        serving = sum(worker.serves_at <= time for worker in self.fleet.workers)
        self.history.append(Moment(time=time, serving=serving, waited=self.fleet.waited))


def pressure(pool: str) -> Signal:
    """Return the signal of the recording rule, from KEDA's query."""
    query = compile_text(QUERY.format(pool=pool))

    def ask(fleet: Fleet, store: Store) -> float | None:
        return next(iter(query(store, fleet.time).values()), None)

    return ask


def open_slots(fleet: Fleet, store: Store) -> float | None:
    """Return the signal of the queue length: one pod for each `places` groups that may be started."""
    wanted = max(1.0, fleet.admissible / fleet.shape.places)
    return wanted / max(1, fleet.ready("spot"))


def buffer_depth(fleet: Fleet, store: Store) -> float | None:
    """Return the signal of the buffer depth: more pods with less than one batch in it, fewer with more."""
    return min(4.0, max(0.25, fleet.shape.groups_per_step / max(1, fleet.buffered)))
