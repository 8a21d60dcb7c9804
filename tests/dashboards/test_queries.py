"""Every query selects what the code exports, by labels that it has, and every metric is used somewhere."""

import re
from collections.abc import Iterator
from typing import Any

import promql_parser as promql
import pytest
from dashboards.boards import NAMES, Selector, expressions, parsed, recorded, rules, selectors, walk
from slipstream.telemetry.table import TABLE, Metric

PREFIX = "slipstream_"
SCRAPED = {"namespace", "pod", "container", "job", "instance", "release", "component", "pool"}
"""Labels that scraping adds to every series of ours."""
RECORDED = {"namespace", "release", "component", "pool", "pod", "gpu", "field", "persistentvolumeclaim", "le"}
FOREIGN = {
    "up": SCRAPED,
    "ALERTS": {"alertname", "alertstate", "severity", "namespace", "release", "pool"},
    "kube_deployment_spec_replicas": {"namespace", "deployment"},
    "kube_deployment_status_replicas_ready": {"namespace", "deployment"},
    "kube_statefulset_replicas": {"namespace", "statefulset"},
    "kube_statefulset_status_replicas_ready": {"namespace", "statefulset"},
}
"""What others export: Prometheus itself, and kube-state-metrics. With their labels."""
SUFFIXES = {
    "counter": ("",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "tally": ("_bucket", "_sum", "_count"),
}
RISING = {"ledger_groups", "ledger_tokens"}
"""Gauges that only rise in most of their states: what the store in Redis counts."""
KIND = re.compile(r"kube_(deployment|statefulset)_")
"""The kind of workload by whose names a series of kube-state-metrics belongs to a release."""
RATES = {"rate", "increase"}
DELIBERATE: dict[str, str] = {}
"""Metrics that neither a dashboard nor a rule uses, and why they are exported."""


def row_of(series: str) -> tuple[str, Metric, str] | None:
    """Name in the table, its row and the suffix of a series; None when the code exports no such series."""
    name = series.removeprefix(PREFIX)
    for row_name, row in TABLE.items():
        for suffix in SUFFIXES[row.kind]:
            if name == row_name + suffix and name != series:
                return row_name, row, suffix
    return None


def labels_of(selector: Selector) -> set[str]:
    """The labels that its series may have. Errors: AssertionError for a series that nobody exports."""
    if selector.name in FOREIGN:
        return FOREIGN[selector.name]
    if selector.name in recorded():
        return RECORDED
    found = row_of(selector.name)
    assert found is not None, f"nobody exports {selector.name}"
    _, row, suffix = found
    return {*row.labels, *SCRAPED, *({"le"} if suffix == "_bucket" else ())}


def names_in(expr: str) -> Iterator[str]:
    """The rows of the table that an expression uses."""
    for selector in selectors(expr):
        if (found := row_of(selector.name)) is not None:
            yield found[0]


def written(expr: str) -> set[str]:
    """The labels that an expression makes."""
    calls = [node for node in walk(parsed(expr)) if isinstance(node, promql.Call)]
    return {call.args[1].val for call in calls if call.func.name == "label_replace"}


def grouping(node: Any) -> list[str]:
    """The labels that an aggregation or an operation names."""
    if isinstance(node, promql.AggregateExpr):
        return list(node.modifier.labels) if node.modifier else []
    if isinstance(node, promql.BinaryExpr) and node.modifier:
        matching = node.modifier.matching
        return [*(matching.labels if matching else ()), *(node.modifier.group_labels or ())]
    return []


@pytest.mark.parametrize("name", NAMES)
def test_a_query_asks_by_labels_that_its_series_have(name: str) -> None:
    for expr in expressions(name):
        for selector in selectors(expr):
            assert selector.matchers <= labels_of(selector), expr
        known = set().union(*(labels_of(selector) for selector in selectors(expr)), written(expr))
        named = {label for node in walk(parsed(expr)) for label in grouping(node)}
        assert named <= known, expr


@pytest.mark.parametrize("name", NAMES)
def test_a_query_stays_within_one_release(name: str) -> None:
    for expr in expressions(name):
        for selector in selectors(expr):
            kind = KIND.match(selector.name)
            assert {"namespace", kind[1] if kind else "release"} <= selector.matchers, expr


@pytest.mark.parametrize("name", NAMES)
def test_rates_are_taken_of_what_rises_and_of_nothing_else(name: str) -> None:
    for expr in expressions(name):
        for selector in selectors(expr):
            found = row_of(selector.name)
            if selector.function in RATES:
                assert found is not None, expr
                assert found[1].kind != "gauge" or found[0] in RISING, expr
            elif found is not None:
                assert found[1].kind in ("gauge", "counter"), f"{selector.name} without a rate: {expr}"


def test_every_exported_metric_is_plotted_or_watched_or_deliberate() -> None:
    watched = {name for rule in rules() for name in names_in(rule["expr"])}
    plotted = {name for board in NAMES for expr in expressions(board) for name in names_in(expr)}
    assert set(TABLE) - watched - plotted == set(DELIBERATE)
    assert all(DELIBERATE.values())
