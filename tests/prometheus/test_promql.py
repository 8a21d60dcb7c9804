"""The evaluator of rules in simulations agrees with Prometheus on the series of a simulated fleet."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus.promtool import RULES, notation, promtool, selector, write_yaml

INTERVAL = 15.0
SCALE = 10**6
PRESSURE = RULES / "pressure.yaml"


def recorded() -> list[str]:
    """Return the names that the rules record."""
    groups = yaml.safe_load(PRESSURE.read_text(encoding="utf-8"))["groups"]
    return [rule["record"] for group in groups for rule in group["rules"]]


def aligned(part: Any, simulated: Any) -> Any:
    """Evaluate the rules at the times of the scrapes, as promtool does; return the store with the results."""
    series = part("promql_series")
    store, rules = series.Store(), part("promql").Rules(PRESSURE)
    raw = [row for row in simulated.store.names() if ":" not in row[0]]
    for step in range(int(simulated.fleet.time / INTERVAL) + 1):
        time = step * INTERVAL
        for name, labels, one in raw:
            if time in one.times:
                value = one.values[one.times.index(time)]
                source = selector(name, labels)
                store.replace(name, time, {} if value is None else {labels: value}, source=source)
        rules.evaluate(store, time)
    return store


def input_series(simulated: Any) -> list[dict[str, str]]:
    """Return all scraped series in promtool's notation."""
    steps = int(simulated.fleet.time / INTERVAL) + 1
    rows = []
    for name, labels, one in simulated.store.names():
        if ":" in name:
            continue
        values: list[float | str] = ["_"] * steps
        for time, value in zip(one.times, one.values, strict=True):
            values[int(time / INTERVAL)] = "stale" if value is None else value
        rows.append({"series": selector(name, labels), "values": notation(values)})
    return rows


def expected(store: Any, name: str, time: float) -> list[dict[str, Any]]:
    """Return the samples of a recorded name at a time, in millionths."""
    return [
        {"labels": selector("", labels), "value": math.floor(SCALE * value + 0.5)}
        for labels, one in store.select(name, lambda _: True)
        if (value := one.at(time)) is not None
    ]


@pytest.mark.chart
def test_every_sample_of_a_recording_rule_equals_that_of_prometheus(part: Any, tmp_path: Path) -> None:
    simulation, fleet = part("simulation"), part("fleet")
    simulated = simulation.Simulation(
        shape=fleet.Shape(start_seconds=120, train_seconds=45, steps=40),
        signals={pool: simulation.pressure(pool) for pool in ("spot", "reserved")},
        events={
            1800: lambda f: f.lose(0.5),
            2400: lambda f: f.stop_learner(),
            3300: lambda f: f.start_learner(),
        },
    ).run(1.25)
    store, names = aligned(part, simulated), recorded()
    times = [INTERVAL * step for step in range(1, 300, 7)]
    checks = [
        {
            "expr": f"round({SCALE} * {name})",
            "eval_time": f"{time:g}s",
            "exp_samples": expected(store, name, time),
        }
        for name in names
        for time in times
    ]
    assert {name for name, _, _ in store.names()} >= set(names), "each rule has recorded something"
    test = {
        "rule_files": [str(PRESSURE)],
        "evaluation_interval": f"{INTERVAL:g}s",
        "tests": [
            {
                "interval": f"{INTERVAL:g}s",
                "input_series": input_series(simulated),
                "promql_expr_test": checks,
            }
        ],
    }
    promtool("test", "rules", write_yaml(tmp_path / "agree.yaml", test))
