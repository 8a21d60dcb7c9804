"""The metrics of a rollout show exactly one state."""

from types import SimpleNamespace

import pytest
from dashboards.boards import script
from slipstream.rollout.state import STATES, State, show_state, state_of
from slipstream.rollout.vllm_engine import CacheUseLogger
from slipstream.served_version import ServedVersion
from slipstream.telemetry.metrics import Metrics


def served(*, version: int | None = None, suspended: bool = False) -> ServedVersion:
    replica = ServedVersion()
    if version is not None:
        replica.serve(version)
    if suspended:
        replica.suspend()
    return replica


@pytest.mark.parametrize(
    ("version", "suspended", "groups", "stopping", "state"),
    [
        (None, False, 0, False, "waiting_for_version"),
        (None, True, 0, False, "waiting_for_version"),  # during the first update
        (0, False, 0, False, "waiting_for_groups"),
        (0, False, 3, False, "generating"),
        (7, True, 3, False, "updating"),
        (7, True, 0, False, "updating"),
        (7, False, 3, True, "draining"),
        (7, True, 3, True, "draining"),
        (None, False, 0, True, "draining"),
    ],
)
def test_the_state_follows_from_version_pause_groups_and_stop(
    version: int | None, suspended: bool, groups: int, stopping: bool, state: State
) -> None:
    actual = state_of(served(version=version, suspended=suspended), groups_running=groups, stopping=stopping)
    assert actual == state


def test_the_dashboards_have_a_colour_for_every_state() -> None:
    assert list(script("rollout_states").STATE_COLORS) == list(STATES)


@pytest.mark.parametrize("state", STATES)
def test_the_metrics_page_has_every_state_and_one_of_them_is_1(state: State) -> None:
    metrics = Metrics()
    show_state(metrics, lambda: state)
    read = metrics.registry.get_sample_value
    shown = {name: read("slipstream_worker_state", {"state": name}) for name in STATES}
    assert shown == {name: float(name == state) for name in STATES}


def test_the_use_of_the_cache_is_that_of_the_last_step_with_requests() -> None:
    metrics = Metrics()
    use = CacheUseLogger(metrics)
    step = SimpleNamespace(num_preempted_reqs=0)
    use.record(SimpleNamespace(kv_cache_usage=0.25), step, mm_cache_stats=None, engine_idx=0)
    use.record(None, step, mm_cache_stats=None, engine_idx=0)
    assert use.share == 0.25
    assert metrics.registry.get_sample_value("slipstream_kv_cache_usage") == 0.25


def test_preempted_requests_are_counted() -> None:
    metrics = Metrics()
    use = CacheUseLogger(metrics)
    for preempted in (0, 2, 3):
        use.record(None, SimpleNamespace(num_preempted_reqs=preempted), mm_cache_stats=None, engine_idx=0)
    assert use.preemptions == 5
    assert metrics.registry.get_sample_value("slipstream_preemptions_total") == 5
