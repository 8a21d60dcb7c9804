"""Autoscaling by pressure against autoscaling by depth: simulated fleets, the real rules, side by side.

    python benchmarks/autoscaling.py [--seeds N] [--docs]

Each scenario is a learner, an admission gate, rollouts that take minutes to start, KEDA and an HPA. The rules
of deploy/prometheus/pressure.yaml are evaluated as they stand on what the simulated pods export.
"""

import argparse
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autoscaler import KUBERNETES_DEFAULT, Behavior
from autoscaling_simulation import (
    RECOMMENDED,
    Event,
    Signal,
    Simulation,
    buffer_depth,
    open_slots,
    pressure,
)
from fleet import Fleet, Shape

DOCS = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
HOUR = 3600.0
RULES: Mapping[str, tuple[Signal, Behavior]] = {
    "pressure": (pressure("spot"), RECOMMENDED),
    "open slots": (open_slots, KUBERNETES_DEFAULT),
    "buffer depth": (buffer_depth, KUBERNETES_DEFAULT),
}


def answers_double(fleet: Fleet) -> None:
    """The policy learns to think for longer."""
    fleet.longer = 2.0


def answers_halve(fleet: Fleet) -> None:
    """The policy learns to be short."""
    fleet.longer = 0.5


def half_is_lost(fleet: Fleet) -> None:
    """A zone's spot nodes go."""
    fleet.lose(0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A run, what happens to it, and the hours in which it should have settled."""

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
    """Of the settled hours: the share of the time that the learner waited, rollouts, scale events an hour."""

    wait: float
    workers: float
    changes: float


def measure(scenario: Scenario, rule: str, *, seed: int) -> Measured:
    """Play a scenario under one of the rules."""
    signal, behavior = RULES[rule]
    found = Simulation(
        signals={"spot": signal},
        shape=scenario.shape,
        events=scenario.events,
        behavior=behavior,
        seed=seed,
    ).run(scenario.end)
    span = (scenario.start, scenario.end)
    return Measured(
        wait=found.wait_share(*span),
        workers=found.workers(*span),
        changes=found.changes(*span) / (scenario.end - scenario.start),
    )


def mean(scenario: Scenario, rule: str, *, seeds: int) -> Measured:
    """The mean over several seeds."""
    rows = [measure(scenario, rule, seed=seed) for seed in range(seeds)]
    return Measured(**{name: statistics.fmean(getattr(r, name) for r in rows) for name in Measured.__slots__})


def table(*, seeds: int) -> str:
    """All scenarios under all rules, as Markdown."""
    lines = [
        "| scenario | needed | " + " | ".join(f"{rule}: wait, rollouts, changes/h" for rule in RULES) + " |",
        "|---|--:|" + "--:|" * len(RULES),
    ]
    for name, scenario in SCENARIOS.items():
        cells = [f"{scenario.shape.needed_workers(longer=scenario.longer):.1f}"]
        for rule in RULES:
            row = mean(scenario, rule, seeds=seeds)
            cells.append(f"{row.wait:.1%}, {row.workers:.1f}, {row.changes:.1f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table; with --docs also write it into docs/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--docs", action="store_true", help="write the table into docs/benchmarks.md")
    arguments = parser.parse_args()
    text = table(seeds=arguments.seeds)
    if arguments.docs:
        begin, end = "<!-- autoscaling -->\n", "<!-- /autoscaling -->"
        page = DOCS.read_text(encoding="utf-8")
        DOCS.write_text(re.sub(f"{begin}.*?{end}", begin + text + end, page, flags=re.S), encoding="utf-8")


if __name__ == "__main__":
    main()
