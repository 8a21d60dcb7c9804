"""A gauge that is read when the page is: always of this moment, and whole."""

import pytest
from prometheus_client import generate_latest
from slipstream.telemetry.metrics import Metrics


def value(metrics: Metrics, state: str) -> float | None:
    return metrics.registry.get_sample_value("slipstream_worker_state", {"state": state})


def test_a_followed_gauge_shows_what_is_so_when_the_page_is_read() -> None:
    now = {"a": 1.0, "b": 0.0}
    metrics = Metrics()
    metrics.follow("worker_state", lambda: now)
    assert (value(metrics, "a"), value(metrics, "b")) == (1, 0)
    now |= {"a": 0.0, "b": 1.0}
    assert (value(metrics, "a"), value(metrics, "b")) == (0, 1)
    assert "# TYPE slipstream_worker_state gauge" in generate_latest(metrics.registry).decode()


def test_whoever_follows_later_takes_the_place_of_the_earlier() -> None:
    metrics = Metrics()
    metrics.follow("worker_state", lambda: {"a": 1.0})
    metrics.follow("worker_state", lambda: {"b": 1.0})
    assert (value(metrics, "a"), value(metrics, "b")) == (None, 1)


def test_only_a_gauge_with_one_label_can_be_followed() -> None:
    with pytest.raises(AssertionError, match="wait_seconds is a histogram"):
        Metrics().follow("wait_seconds", dict)
    with pytest.raises(AssertionError, match="policy_version: a callback gauge has one label"):
        Metrics().follow("policy_version", dict)
