"""With the pressure rule a simulated fleet settles near the needed size and recovers from faults."""

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
    """Return a function that simulates autoscaled pools for some hours; `shape` describes the fleet."""
    simulation, fleet = part("simulation"), part("fleet")

    def run(hours: float, *, pools: tuple[str, ...] = ("spot",), shape: Any = None, **settings: Any) -> Any:
        settings.setdefault("signals", {pool: simulation.pressure(pool) for pool in pools})
        return simulation.Simulation(shape=fleet.Shape(**(shape or {})), **settings).run(hours)

    return run


def replicas_at(simulated: Any, hour: float, pool: str = "spot") -> int:
    """Return the replicas that the autoscaler of a pool had set last at an hour."""
    return next((after for at, _, after in reversed(simulated.scalers[pool].events) if at <= hour * HOUR), 0)


def values(simulated: Any) -> list[float]:
    """Return every sample of the pressure rule."""
    return [
        v
        for _, series in simulated.store.select("slipstream:pressure", lambda _: True)
        for v in series.values
    ]


def test_a_fleet_grows_from_zero_to_the_needed_size_and_stays_there(play: Play) -> None:
    simulated = play(3)
    needed = simulated.shape.needed_workers()
    assert simulated.wait_share(1, 3) < 0.01
    assert needed <= simulated.workers(1, 3) <= 1.25 * needed
    assert simulated.changes(1, 3) <= 4
    assert max(after for _, _, after in simulated.scalers["spot"].events) <= 1.5 * needed
    assert all(value is None or 0 <= value <= 4 for value in values(simulated))


def test_without_a_learner_the_fleet_shrinks_to_zero_and_grows_again_with_one(play: Play) -> None:
    simulated = play(
        2.75, events={1 * HOUR: lambda f: f.stop_learner(), 1.5 * HOUR: lambda f: f.start_learner()}
    )
    assert replicas_at(simulated, 1.15) == replicas_at(simulated, 1.0) > 0, (
        "a learner may be away for ten minutes"
    )
    assert replicas_at(simulated, 1.4) == 0
    assert simulated.wait_share(2.25, 2.75) < 0.01


def test_a_finished_run_has_no_rollouts(play: Play) -> None:
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
    measured = autoscaling.measure(scenario, "pressure", seed=seed)
    needed = scenario.shape.needed_workers(longer=scenario.longer)
    assert measured.wait < 0.02
    assert 0.95 * needed <= measured.workers <= 1.3 * needed
    assert measured.changes <= 4


@pytest.mark.chart
def test_the_scenarios_are_those_of_the_benchmark(part: Any) -> None:
    (marks,) = [
        mark
        for mark in test_every_scenario_of_the_benchmark_settles.pytestmark  # type: ignore[attr-defined]
        if mark.name == "parametrize" and mark.args[0] == "name"
    ]
    assert marks.args[1] == list(part("__main__").SCENARIOS)


@pytest.mark.chart
def test_a_lost_half_of_the_fleet_is_replaced_without_overshoot(play: Play) -> None:
    simulated = play(4, events={2 * HOUR: lambda f: f.lose(0.5)})
    before = replicas_at(simulated, 2)
    assert max(after for at, _, after in simulated.scalers["spot"].events if at > 2 * HOUR) <= before + 2
    assert simulated.wait_share(2, 4) < 0.02


@pytest.mark.chart
def test_a_fleet_grows_within_an_hour_when_completions_double_in_length(play: Play) -> None:
    def doubled(fleet: Any) -> None:
        fleet.longer = 2.0

    simulated = play(3.5, events={2 * HOUR: doubled})
    assert simulated.wait_share(2, 3) < 0.25
    assert simulated.wait_share(3, 3.5) < 0.02
    assert replicas_at(simulated, 3) >= simulated.shape.needed_workers(longer=2.0)


@pytest.mark.chart
def test_a_restart_of_the_learner_does_not_change_the_replicas(play: Play) -> None:
    simulated = play(
        3, events={2 * HOUR: lambda f: f.stop_learner(), 2 * HOUR + 400: lambda f: f.start_learner()}
    )
    assert simulated.changes(1.95, 2.25) == 0
    assert simulated.wait_share(2.25, 3) < 0.01


@pytest.mark.chart
def test_pools_share_the_demand_and_a_static_one_counts_as_supply(play: Play) -> None:
    two_pools = play(3, pools=("spot", "reserved"))
    needed = two_pools.shape.needed_workers()
    assert needed <= two_pools.workers(2, 3) <= needed + 2
    assert abs(replicas_at(two_pools, 3) - replicas_at(two_pools, 3, "reserved")) <= 3
    with_a_small_static_pool = play(3, static={"fixed": 6})
    assert needed <= with_a_small_static_pool.workers(2, 3) <= needed + 2
    with_a_large_static_pool = play(3, static={"fixed": 12})
    assert replicas_at(with_a_large_static_pool, 3) == 1, (
        "KEDA keeps one rollout in each pool while the learner runs"
    )


@pytest.mark.chart
def test_with_the_default_behavior_of_kubernetes_a_fleet_never_shrinks(part: Any, play: Play) -> None:
    """During a publication the pressure is 1, and the window of five minutes uses the largest value."""

    def halved(fleet: Any) -> None:
        fleet.longer = 0.5

    default = part("autoscaler").KUBERNETES_DEFAULT
    stuck = play(4, events={2 * HOUR: halved}, behavior=default)
    ours = play(4, events={2 * HOUR: halved})
    assert stuck.workers(3.5, 4) >= 2 * stuck.shape.needed_workers(longer=0.5)
    assert ours.workers(3.5, 4) <= 1.3 * ours.shape.needed_workers(longer=0.5)


@pytest.mark.chart
@pytest.mark.parametrize("rule", ["open slots", "buffer depth"])
def test_rules_on_open_slots_or_buffer_depth_change_the_replicas_much_more_often(
    part: Any, rule: str
) -> None:
    autoscaling = part("__main__")
    steady = autoscaling.SCENARIOS["steady"]
    depth = autoscaling.measure(steady, rule, seed=0)
    ours = autoscaling.measure(steady, "pressure", seed=0)
    assert depth.changes > 5 * max(1.0, ours.changes)


def test_the_readme_recommends_the_simulated_settings(part: Any) -> None:
    text = README.read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, flags=re.S)
    recommended = yaml.safe_load(block)
    simulation, (trigger,) = part("simulation"), recommended["triggers"]
    query = simulation.QUERY.format(pool="POOL").replace('"training"', '"NS"').replace('"run"', '"RUN"')
    assert promql.parse(trigger["metadata"]["query"]).prettify() == promql.parse(query).prettify()
    assert float(trigger["metadata"]["threshold"]) == 1
    scaler = part("autoscaler").Autoscaler(behavior=simulation.RECOMMENDED, most=1)
    assert recommended["cooldownPeriod"] == scaler.cooldown
    behavior = recommended["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    for section, simulated in (("scaleUp", "up"), ("scaleDown", "down")):
        direction = getattr(simulation.RECOMMENDED, simulated)
        percent, pods = behavior[section]["policies"]
        assert behavior[section]["stabilizationWindowSeconds"] == direction.window
        assert (percent["type"], percent["value"]) == ("Percent", direction.percent)
        assert (pods["type"], pods["value"]) == ("Pods", direction.pods)
        assert percent["periodSeconds"] == pods["periodSeconds"] == direction.period
