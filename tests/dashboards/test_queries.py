"""Every query selects exported series by labels that they have, and every metric is used."""

import re
from collections.abc import Iterator
from typing import Any

import promql_parser as promql
import pytest
from dashboards.boards import NAMES, Selector, expressions, parsed, recorded, rules, selectors, walk
from slipstream.telemetry.table import TABLE, Metric

PREFIX = "slipstream_"
SCRAPED = {"namespace", "pod", "container", "job", "instance", "release", "component", "pool"}
"""Labels that scraping adds to every series of Slipstream."""
RECORDED = {"namespace", "release", "component", "pool", "pod", "gpu", "field", "persistentvolumeclaim", "le"}
FOREIGN = {
    "up": SCRAPED,
    "ALERTS": {"alertname", "alertstate", "severity", "namespace", "release", "pool"},
    "kube_deployment_spec_replicas": {"namespace", "deployment"},
    "kube_deployment_status_replicas_ready": {"namespace", "deployment"},
    "kube_statefulset_replicas": {"namespace", "statefulset"},
    "kube_statefulset_status_replicas_ready": {"namespace", "statefulset"},
}
"""Series that Prometheus and kube-state-metrics export, with their labels."""
SUFFIXES = {
    "counter": ("",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "tally": ("_bucket", "_sum", "_count"),
}
RISING = {"ledger_groups", "ledger_tokens"}
"""Gauges of counts in Redis, which only rise, apart from some of their labels."""
KIND = re.compile(r"kube_(deployment|statefulset)_")
"""Kinds of workloads whose name is the label by which a series of kube-state-metrics belongs to a release."""
RATES = {"rate", "increase"}
DELIBERATE: dict[str, str] = {}
"""Metrics that neither a dashboard nor a rule uses, and why they are exported."""


def row_of(series: str) -> tuple[str, Metric, str] | None:
    """Return name and row of the metric of a series, and its suffix; None if no metric exports it."""
    name = series.removeprefix(PREFIX)
    for row_name, row in TABLE.items():
        for suffix in SUFFIXES[row.kind]:
            if name == row_name + suffix and name != series:
                return row_name, row, suffix
    return None


def labels_of(selector: Selector) -> set[str]:
    """Return the labels of a selector's series. Errors: AssertionError for a series that nobody exports."""
    if selector.name in FOREIGN:
        return FOREIGN[selector.name]
    if selector.name in recorded():
        return RECORDED
    metric = row_of(selector.name)
    assert metric is not None, f"nobody exports {selector.name}"
    _, row, suffix = metric
    return {*row.labels, *SCRAPED, *({"le"} if suffix == "_bucket" else ())}


def names_in(expr: str) -> Iterator[str]:
    """Yield the names of the metrics that an expression uses."""
    for selector in selectors(expr):
        if (metric := row_of(selector.name)) is not None:
            yield metric[0]


def written(expr: str) -> set[str]:
    """Return the labels that an expression adds with label_replace."""
    calls = [node for node in walk(parsed(expr)) if isinstance(node, promql.Call)]
    return {call.args[1].val for call in calls if call.func.name == "label_replace"}


def grouping(node: Any) -> list[str]:
    """Return the labels by which an aggregation or a binary operation groups."""
    if isinstance(node, promql.AggregateExpr):
        return list(node.modifier.labels) if node.modifier else []
    if isinstance(node, promql.BinaryExpr) and node.modifier:
        matching = node.modifier.matching
        return [*(matching.labels if matching else ()), *(node.modifier.group_labels or ())]
    return []


@pytest.mark.parametrize("name", NAMES)
def test_a_query_matches_labels_that_its_series_have(name: str) -> None:
    for expr in expressions(name):
        for selector in selectors(expr):
            assert selector.matchers <= labels_of(selector), expr
        labels = set().union(*(labels_of(selector) for selector in selectors(expr)), written(expr))
        grouped = {label for node in walk(parsed(expr)) for label in grouping(node)}
        assert grouped <= labels, expr


@pytest.mark.parametrize("name", NAMES)
def test_a_query_selects_series_of_one_release(name: str) -> None:
    for expr in expressions(name):
        for selector in selectors(expr):
            kind = KIND.match(selector.name)
            assert {"namespace", kind[1] if kind else "release"} <= selector.matchers, expr


@pytest.mark.parametrize("name", NAMES)
def test_rates_are_taken_only_of_series_that_rise(name: str) -> None:
    for expr in expressions(name):
        for selector in selectors(expr):
            metric = row_of(selector.name)
            if selector.function in RATES:
                assert metric is not None, expr
                assert metric[1].kind != "gauge" or metric[0] in RISING, expr
            elif metric is not None:
                assert metric[1].kind in ("gauge", "counter"), f"{selector.name} without a rate: {expr}"


def test_every_exported_metric_is_in_a_panel_or_an_alert_or_in_the_list_of_exceptions() -> None:
    watched = {name for rule in rules() for name in names_in(rule["expr"])}
    plotted = {name for board in NAMES for expr in expressions(board) for name in names_in(expr)}
    assert set(TABLE) - watched - plotted == set(DELIBERATE)
    assert all(DELIBERATE.values())
