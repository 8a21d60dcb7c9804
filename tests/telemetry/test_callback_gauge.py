"""A callback gauge has the values at the time of the scrape, all of them read together."""

import pytest
from prometheus_client import generate_latest
from slipstream.telemetry.metrics import Metrics


def value(metrics: Metrics, state: str) -> float | None:
    return metrics.registry.get_sample_value("slipstream_worker_state", {"state": state})


def test_a_callback_gauge_has_the_values_at_the_time_of_the_scrape() -> None:
    now = {"a": 1.0, "b": 0.0}
    metrics = Metrics()
    metrics.follow("worker_state", lambda: now)
    assert (value(metrics, "a"), value(metrics, "b")) == (1, 0)
    now |= {"a": 0.0, "b": 1.0}
    assert (value(metrics, "a"), value(metrics, "b")) == (0, 1)
    assert "# TYPE slipstream_worker_state gauge" in generate_latest(metrics.registry).decode()


def test_a_later_callback_replaces_an_earlier_one() -> None:
    metrics = Metrics()
    metrics.follow("worker_state", lambda: {"a": 1.0})
    metrics.follow("worker_state", lambda: {"b": 1.0})
    assert (value(metrics, "a"), value(metrics, "b")) == (None, 1)


def test_only_a_gauge_with_one_label_can_have_a_callback() -> None:
    with pytest.raises(AssertionError, match="wait_seconds is a histogram"):
        Metrics().follow("wait_seconds", dict)
    with pytest.raises(AssertionError, match="policy_version: a callback gauge has one label"):
        Metrics().follow("policy_version", dict)
