"""A metrics page is parsed back into the values that were set."""

import math

import pytest
from prometheus_client import generate_latest
from slipstream.telemetry.metrics import Metrics
from slipstream.telemetry.readings import Buckets, Page


def page_of(metrics: Metrics) -> Page:
    return Page(generate_latest(metrics.registry).decode())


def test_gauges_are_found_by_name_and_labels() -> None:
    metrics = Metrics()
    metrics.set("ledger_groups", 4, state="filtered", reason="unvaried")
    metrics.set("ledger_groups", 2, state="filtered", reason="overlong")
    page = page_of(metrics)
    assert page.value("ledger_groups", state="filtered", reason="overlong") == 2
    assert page.value("ledger_groups", state="filtered") is None
    assert [value for _, value in page.rows("ledger_groups")] == [4, 2]


def test_a_metric_that_was_never_set_has_no_value() -> None:
    page = page_of(Metrics())
    assert page.value("policy_version") is None
    assert page.histogram("staleness_versions") is None


def test_a_quantile_is_the_bound_of_a_bucket() -> None:
    metrics = Metrics()
    metrics.observe_counts("staleness_versions", {0: 50, 1: 49, 100: 1})
    ages = page_of(metrics).histogram("staleness_versions")
    assert ages is not None
    assert (ages.count, ages.mean) == (100, 1.49)
    assert [ages.quantile(share) for share in (0.5, 0.51, 0.99, 1.0)] == [0, 1, 1, math.inf]


def test_an_empty_histogram_has_no_quantile() -> None:
    empty = Buckets(cumulative=((1.0, 0.0), (math.inf, 0.0)), sum=0.0)
    assert math.isnan(empty.quantile(0.5))
    assert empty.mean == 0


def test_two_histograms_add_up() -> None:
    one = Buckets(cumulative=((1.0, 2.0), (math.inf, 3.0)), sum=7.0)
    both = one + one
    assert both == Buckets(cumulative=((1.0, 4.0), (math.inf, 6.0)), sum=14.0)
    with pytest.raises(AssertionError, match="other bounds"):
        one + Buckets(cumulative=((2.0, 1.0),), sum=1.0)
