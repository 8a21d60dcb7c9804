"""Autoscaling by pressure against autoscaling by depth: simulated fleets, the real rules, side by side.

    python -m benchmarks.autoscaling [--seeds N] [--scenarios NAME ...] [--rules NAME ...]

Each scenario is a learner, an admission gate, rollouts that take minutes to start, KEDA and an HPA. The rules
of charts/slipstream/files/rules/pressure.yaml are evaluated unchanged on the metrics of the simulated pods.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.autoscaling.autoscaler import KUBERNETES_DEFAULT, Behavior
from benchmarks.autoscaling.fleet import Fleet, Shape
from benchmarks.autoscaling.simulation import (
    RECOMMENDED,
    Event,
    Signal,
    Simulation,
    buffer_depth,
    open_slots,
    pressure,
)
from benchmarks.ratio import print_ratio

HOUR = 3600.0
RULES: Mapping[str, tuple[Signal, Behavior]] = {
    "pressure": (pressure("spot"), RECOMMENDED),
    "open slots": (open_slots, KUBERNETES_DEFAULT),
    "buffer depth": (buffer_depth, KUBERNETES_DEFAULT),
}


def answers_double(fleet: Fleet) -> None:
    """The completions of the policy double in length."""
    fleet.longer = 2.0


def answers_halve(fleet: Fleet) -> None:
    """The completions of the policy halve in length."""
    fleet.longer = 0.5


def half_is_lost(fleet: Fleet) -> None:
    """The spot nodes of a zone are removed."""
    fleet.lose(0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A run, its events, and the hours in which the fleet should have settled."""

    shape: Shape = field(default_factory=Shape)
    events: Mapping[float, Event] = field(default_factory=dict)
    longer: float = 1.0
    start: float = 2.0
    end: float = 4.0


SCENARIOS: Mapping[str, Scenario] = {
    "steady": Scenario(),
    "engines load for ten minutes": Scenario(shape=Shape(start_seconds=600)),
    "an engine as fast with few groups": Scenario(shape=Shape(half=0.5, peak=4250)),
    "steps of ten minutes": Scenario(
        shape=Shape(train_seconds=600, publish_seconds=40, groups_per_step=256, places=32, half=16)
    ),
    "groups of a quarter of an hour": Scenario(
        shape=Shape(
            train_seconds=240, groups_per_step=64, tokens=225_000, places=16, half=8, pipeline_depth=8
        ),
        start=3.0,
        end=6.0,
    ),
    "publishing two fifths of the time": Scenario(shape=Shape(publish_seconds=40)),
    "half of the fleet is lost": Scenario(events={2 * HOUR: half_is_lost}, start=2.5, end=4.5),
    "answers double": Scenario(events={2 * HOUR: answers_double}, longer=2.0, start=3.0, end=5.0),
    "answers halve": Scenario(events={2 * HOUR: answers_halve}, longer=0.5, start=3.0, end=5.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is measured in the hours after the fleet has settled.

    The share of the time that the learner waited, the number of rollouts, and the scale events an hour.
    """

    wait: float
    workers: float
    changes: float


def measure(scenario: Scenario, rule: str, *, seed: int) -> Measured:
    """Simulate a scenario with one of the rules."""
    signal, behavior = RULES[rule]
    simulation = Simulation(
        signals={"spot": signal},
        shape=scenario.shape,
        events=scenario.events,
        behavior=behavior,
        seed=seed,
    ).run(scenario.end)
    span = (scenario.start, scenario.end)
    return Measured(
        wait=simulation.wait_share(*span),
        workers=simulation.workers(*span),
        changes=simulation.changes(*span) / (scenario.end - scenario.start),
    )


def mean(scenario: Scenario, rule: str, *, seeds: int) -> Measured:
    """The mean over several seeds."""
    rows = [measure(scenario, rule, seed=seed) for seed in range(seeds)]
    return Measured(**{name: statistics.fmean(getattr(r, name) for r in rows) for name in Measured.__slots__})


def measured(
    scenarios: Sequence[str], rules: Sequence[str], *, seeds: int
) -> dict[tuple[str, str], Measured]:
    """Every scenario under every rule."""
    outcomes = {}
    for name in scenarios:
        for rule in rules:
            outcomes[name, rule] = mean(SCENARIOS[name], rule, seeds=seeds)
            print(f"{name}, {rule}: {outcomes[name, rule]}", file=sys.stderr, flush=True)
    return outcomes


def table(rows: Mapping[tuple[str, str], Measured], scenarios: Sequence[str], rules: Sequence[str]) -> str:
    """All scenarios under all rules, as Markdown."""
    lines = [
        "| scenario | needed | " + " | ".join(f"{rule}: wait, rollouts, changes/h" for rule in rules) + " |",
        "|---|--:|" + "--:|" * len(rules),
    ]
    for name in scenarios:
        cells = [f"{needed(name):.1f}"]
        for rule in rules:
            row = rows[name, rule]
            cells.append(f"{row.wait:.1%}, {row.workers:.1f}, {row.changes:.1f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def needed(name: str) -> float:
    """Return the least number of rollouts with which the learner of a settled scenario never waits."""
    scenario = SCENARIOS[name]
    return scenario.shape.needed_workers(longer=scenario.longer)


def main() -> None:
    """Print the table, and the worst of pressure over the scenarios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--scenarios", choices=SCENARIOS, nargs="+", default=list(SCENARIOS))
    parser.add_argument("--rules", choices=RULES, nargs="+", default=list(RULES))
    arguments = parser.parse_args()
    rows = measured(arguments.scenarios, arguments.rules, seeds=arguments.seeds)
    print(table(rows, arguments.scenarios, arguments.rules))
    pressed = {name: row for (name, rule), row in rows.items() if rule == "pressure"}
    if pressed:
        print_ratio("pressure, largest share of the time waited", max(row.wait for row in pressed.values()))
        shares = [row.workers / needed(name) for name, row in pressed.items()]
        print_ratio("pressure, fewest rollouts / needed", min(shares))
        print_ratio("pressure, most rollouts / needed", max(shares))
        print_ratio("pressure, most changes an hour", max(row.changes for row in pressed.values()))


if __name__ == "__main__":
    main()
