"""The pressure rule on a simulated fleet: it settles near what is needed, stays there, and comes back."""

import re
from collections.abc import Callable
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus.promtool import DEPLOY

README = DEPLOY / "README.md"
HOUR = 3600.0
Play = Callable[..., Any]


@pytest.fixture(scope="module")
def play(part: Any) -> Play:
    """Runs a fleet of one autoscaled pool for some hours; `shape` by its fields."""
    simulation, fleet = part("simulation"), part("fleet")

    def run(hours: float, *, pools: tuple[str, ...] = ("spot",), shape: Any = None, **settings: Any) -> Any:
        settings.setdefault("signals", {pool: simulation.pressure(pool) for pool in pools})
        return simulation.Simulation(shape=fleet.Shape(**(shape or {})), **settings).run(hours)

    return run


def replicas_at(found: Any, hour: float, pool: str = "spot") -> int:
    """What the autoscaler of a pool had decided by then."""
    return next((after for at, _, after in reversed(found.scalers[pool].events) if at <= hour * HOUR), 0)


def values(found: Any) -> list[float]:
    """Every value that the rule has ever given."""
    return [
        v for _, series in found.store.select("slipstream:pressure", lambda _: True) for v in series.values
    ]


def test_a_fleet_grows_from_nothing_to_what_is_needed_and_stays(play: Play) -> None:
    found = play(3)
    needed = found.shape.needed_workers()
    assert found.wait_share(1, 3) < 0.01
    assert needed <= found.workers(1, 3) <= 1.25 * needed
    assert found.changes(1, 3) <= 4
    assert max(after for _, _, after in found.scalers["spot"].events) <= 1.5 * needed
    assert all(value is None or 0 <= value <= 4 for value in values(found))


def test_without_a_learner_nothing_runs_and_with_one_the_fleet_comes_back(play: Play) -> None:
    found = play(2.75, events={1 * HOUR: lambda f: f.stop_learner(), 1.5 * HOUR: lambda f: f.start_learner()})
    assert replicas_at(found, 1.15) == replicas_at(found, 1.0) > 0, "a learner may be away for ten minutes"
    assert replicas_at(found, 1.4) == 0
    assert found.wait_share(2.25, 2.75) < 0.01


def test_a_finished_run_needs_nobody(play: Play) -> None:
    assert replicas_at(play(1.5, shape={"steps": 20}), 1.5) == 0


@pytest.mark.chart
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "name",
    [
        "steady",
        "engines load for ten minutes",
        "an engine as fast with few groups",
        "steps of ten minutes",
        "groups of a quarter of an hour",
        "publishing two fifths of the time",
        "half of the fleet is lost",
        "answers double",
        "answers halve",
    ],
)
def test_every_scenario_of_the_benchmark_settles(part: Any, name: str, seed: int) -> None:
    autoscaling = part("__main__")
    scenario = autoscaling.SCENARIOS[name]
    found = autoscaling.measure(scenario, "pressure", seed=seed)
    needed = scenario.shape.needed_workers(longer=scenario.longer)
    assert found.wait < 0.02
    assert 0.95 * needed <= found.workers <= 1.3 * needed
    assert found.changes <= 4


@pytest.mark.chart
def test_the_scenarios_are_those_of_the_benchmark(part: Any) -> None:
    (marks,) = [
        mark
        for mark in test_every_scenario_of_the_benchmark_settles.pytestmark  # type: ignore[attr-defined]
        if mark.name == "parametrize" and mark.args[0] == "name"
    ]
    assert marks.args[1] == list(part("__main__").SCENARIOS)


@pytest.mark.chart
def test_a_lost_half_is_replaced_and_not_overshot(play: Play) -> None:
    found = play(4, events={2 * HOUR: lambda f: f.lose(0.5)})
    before = replicas_at(found, 2)
    assert max(after for at, _, after in found.scalers["spot"].events if at > 2 * HOUR) <= before + 2
    assert found.wait_share(2, 4) < 0.02


@pytest.mark.chart
def test_doubled_answers_are_met_within_the_hour(play: Play) -> None:
    def doubled(fleet: Any) -> None:
        fleet.longer = 2.0

    found = play(3.5, events={2 * HOUR: doubled})
    assert found.wait_share(2, 3) < 0.25
    assert found.wait_share(3, 3.5) < 0.02
    assert replicas_at(found, 3) >= found.shape.needed_workers(longer=2.0)


@pytest.mark.chart
def test_a_learner_that_restarts_restarts_nothing_else(play: Play) -> None:
    found = play(
        3, events={2 * HOUR: lambda f: f.stop_learner(), 2 * HOUR + 400: lambda f: f.start_learner()}
    )
    assert found.changes(1.95, 2.25) == 0
    assert found.wait_share(2.25, 3) < 0.01


@pytest.mark.chart
def test_pools_share_the_demand_and_a_static_one_counts_as_supply(play: Play) -> None:
    both = play(3, pools=("spot", "reserved"))
    needed = both.shape.needed_workers()
    assert needed <= both.workers(2, 3) <= needed + 2
    assert abs(replicas_at(both, 3) - replicas_at(both, 3, "reserved")) <= 3
    beside = play(3, static={"fixed": 6})
    assert needed <= beside.workers(2, 3) <= needed + 2
    enough = play(3, static={"fixed": 12})
    assert replicas_at(enough, 3) == 1, "KEDA keeps one rollout in each pool while the learner runs"


@pytest.mark.chart
def test_the_default_window_of_kubernetes_never_lets_a_fleet_shrink(part: Any, play: Play) -> None:
    """Each publication says «stay», and the window takes the most of five minutes."""

    def halved(fleet: Any) -> None:
        fleet.longer = 0.5

    default = part("autoscaler").KUBERNETES_DEFAULT
    stuck = play(4, events={2 * HOUR: halved}, behavior=default)
    ours = play(4, events={2 * HOUR: halved})
    assert stuck.workers(3.5, 4) >= 2 * stuck.shape.needed_workers(longer=0.5)
    assert ours.workers(3.5, 4) <= 1.3 * ours.shape.needed_workers(longer=0.5)


@pytest.mark.chart
@pytest.mark.parametrize("rule", ["open slots", "buffer depth"])
def test_rules_of_depth_flap_or_starve(part: Any, rule: str) -> None:
    autoscaling = part("__main__")
    steady = autoscaling.SCENARIOS["steady"]
    depth = autoscaling.measure(steady, rule, seed=0)
    ours = autoscaling.measure(steady, "pressure", seed=0)
    assert depth.changes > 5 * max(1.0, ours.changes)


def test_the_readme_recommends_what_is_simulated(part: Any) -> None:
    text = README.read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, flags=re.S)
    told = yaml.safe_load(block)
    simulation, (trigger,) = part("simulation"), told["triggers"]
    asked = simulation.QUERY.format(pool="POOL").replace('"training"', '"NS"').replace('"run"', '"RUN"')
    assert promql.parse(trigger["metadata"]["query"]).prettify() == promql.parse(asked).prettify()
    assert float(trigger["metadata"]["threshold"]) == 1
    scaler = part("autoscaler").Autoscaler(behavior=simulation.RECOMMENDED, most=1)
    assert told["cooldownPeriod"] == scaler.cooldown
    behavior = told["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    for section, simulated in (("scaleUp", "up"), ("scaleDown", "down")):
        direction = getattr(simulation.RECOMMENDED, simulated)
        percent, pods = behavior[section]["policies"]
        assert behavior[section]["stabilizationWindowSeconds"] == direction.window
        assert (percent["type"], percent["value"]) == ("Percent", direction.percent)
        assert (pods["type"], pods["value"]) == ("Pods", direction.pods)
        assert percent["periodSeconds"] == pods["periodSeconds"] == direction.period
