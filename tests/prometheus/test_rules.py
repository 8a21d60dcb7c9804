"""The rules read metrics that exist, and every alert has a runbook and tests of when it fires."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus.promtool import DEPLOY, ROOT, RULES, promtool
from slipstream.config import RunConfig
from slipstream.telemetry.metrics import TABLE

FILES = sorted(RULES.glob("*.yaml"))
TESTS = sorted((DEPLOY / "tests").glob("*.yaml"))
RUNBOOKS = ROOT / "docs" / "alerts.md"
SCRAPED = {"namespace", "release", "component", "pool", "pod"}
OTHERS = {
    "up": set(),
    "kube_horizontalpodautoscaler_status_current_replicas": {"horizontalpodautoscaler"},
    "kube_horizontalpodautoscaler_spec_max_replicas": {"horizontalpodautoscaler"},
    "kube_pod_info": set(),
    "kube_pod_container_status_restarts_total": {"container"},
    "kube_pod_container_status_last_terminated_reason": {"container", "reason"},
    "kube_pod_spec_volumes_persistentvolumeclaims_info": {"volume", "persistentvolumeclaim"},
    "kubelet_volume_stats_used_bytes": {"persistentvolumeclaim"},
    "kubelet_volume_stats_capacity_bytes": {"persistentvolumeclaim"},
    **{
        f"DCGM_FI_DEV_{field}": {"gpu", "GPU_I_ID", "exported_pod", "exported_namespace"}
        for field in ("GPU_UTIL", "FB_USED", "FB_FREE", "NVLINK_BANDWIDTH_TOTAL", "XID_ERRORS")
    },
}
"""Series of other exporters, with their labels apart from those that scraping adds."""

FOR_PEOPLE = {
    "slipstream:active_share",
    "slipstream:supply_groups_per_second",
    "slipstream:pressure",
    "slipstream:gpu",
    "slipstream:restarts",
    "slipstream:out_of_memory_restarts",
}
"""Recorded names that only dashboards and autoscalers read; every other recorded name is read by a rule."""


@cache
def rules() -> list[dict[str, Any]]:
    """Return the rules of all files."""
    return [
        rule
        for file in FILES
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]


def alerts() -> list[dict[str, Any]]:
    """Return the alerts among the rules."""
    return [rule for rule in rules() if "alert" in rule]


def nodes(node: Any) -> Iterator[Any]:
    """Yield the node of an expression and all nodes below it."""
    yield node
    children = [getattr(node, name, None) for name in ("lhs", "rhs", "expr", "vector_selector")]
    for child in (*children, *getattr(node, "args", ())):
        if child is not None:
            yield from nodes(child)


def selectors(expr: str) -> list[tuple[str, set[str]]]:
    """Return the series that an expression selects, each with the labels of its matchers."""
    return [
        (name, {matcher.name for matcher in node.matchers.matchers} - {"__name__"})
        for node in nodes(promql.parse(expr))
        if isinstance(node, promql.VectorSelector)
        for name in ([node.name] if node.name else names_that_match(node))
    ]


def names_that_match(node: Any) -> list[str]:
    """Return the series that match a selector without a name."""
    (pattern,) = [matcher.value for matcher in node.matchers.matchers if matcher.name == "__name__"]
    names = [name for name in exported() | OTHERS if re.fullmatch(pattern, name)]
    assert names, f"{pattern} finds nothing"
    return names


def made_labels(expr: str) -> set[str]:
    """Return the labels that an expression adds with label_replace."""
    calls = [node for node in nodes(promql.parse(expr)) if isinstance(node, promql.Call)]
    return {node.args[1].val for node in calls if node.func.name == "label_replace"}


def grouping(expr: str) -> set[str]:
    """Return the labels by which an expression aggregates or matches."""
    labels: set[str] = set()
    for node in nodes(promql.parse(expr)):
        modifier = getattr(node, "modifier", None)
        for part in (modifier, getattr(modifier, "matching", None)):
            labels |= set(getattr(part, "labels", ()) or ())
        labels |= set(getattr(getattr(modifier, "group_labels", None), "labels", ()) or ())
    return labels


def exported() -> dict[str, set[str]]:
    """Return the series of the table of metrics, with their labels."""
    series: dict[str, set[str]] = {}
    for name, row in TABLE.items():
        histogram = row.kind in ("histogram", "tally")
        for suffix in ("_bucket", "_sum", "_count") if histogram else ("",):
            series[f"slipstream_{name}{suffix}"] = set(row.labels) | (
                {"le"} if suffix == "_bucket" else set()
            )
    return series


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert", rule.get("record")))
def test_a_rule_reads_series_that_exist_by_labels_that_they_have(rule: dict[str, Any]) -> None:
    labels_by_series = (
        exported() | OTHERS | {other["record"]: set() for other in rules() if "record" in other}
    )
    labels = SCRAPED.union(*(labels_by_series.get(name, set()) for name, _ in selectors(rule["expr"])))
    labels |= made_labels(rule["expr"])
    recorded = [name for name, _ in selectors(rule["expr"]) if ":" in name]
    for name in recorded:
        labels = labels.union(*(grouping(other["expr"]) for other in rules() if other.get("record") == name))
    for name, matched in selectors(rule["expr"]):
        assert name in labels_by_series, f"{name} is neither in TABLE nor recorded"
        assert matched <= labels_by_series[name] | SCRAPED, (
            f"{name} has no label {matched - labels_by_series[name] - SCRAPED}"
        )
    assert grouping(rule["expr"]) <= labels, f"nothing here has {grouping(rule['expr']) - labels}"


def test_a_counter_is_read_only_through_rate_or_increase() -> None:
    counters = {f"slipstream_{name}" for name, row in TABLE.items() if row.kind == "counter"}
    for rule in rules():
        read = [name for name, _ in selectors(rule["expr"]) if name in counters]
        grown = [
            node.args[0].vector_selector.name
            for node in nodes(promql.parse(rule["expr"]))
            if isinstance(node, promql.Call) and node.func.name in ("rate", "increase")
        ]
        assert sorted(read) == sorted(name for name in grown if name in counters), rule


def test_every_recorded_name_is_read() -> None:
    read = {name for rule in rules() for name, _ in selectors(rule["expr"])}
    recorded = [rule["record"] for rule in rules() if "record" in rule]
    assert len(recorded) == len(set(recorded))
    assert set(recorded) - read == FOR_PEOPLE


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_has_a_severity_a_summary_a_description_and_a_runbook(alert: dict[str, Any]) -> None:
    assert re.fullmatch(r"Slipstream[A-Z]\w+", alert["alert"])
    assert alert["labels"]["severity"] in ("warning", "critical")
    notes = alert["annotations"]
    assert set(notes) == {"summary", "description", "runbook"}
    assert notes["runbook"] == f"docs/alerts.md#{alert['alert'].lower()}"
    text = notes["summary"] + notes["description"]
    assert "$labels.namespace" in text
    assert "$labels.release" in text or "$labels.horizontalpodautoscaler" in text


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    text = RUNBOOKS.read_text(encoding="utf-8")
    parts = dict(re.findall(r"^## (Slipstream\w+)\n(.*?)(?=^## |\Z)", text, flags=re.M | re.S))
    assert sorted(parts) == sorted(alert["alert"] for alert in alerts())
    for name, part in parts.items():
        for heading in ("Means", "See it", "Causes", "Do"):
            assert f"**{heading}.**" in part, f"{name} does not say «{heading}»"
        assert "`" in part, f"{name} names no command, query or key"


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    checks = [
        check
        for file in TESTS
        for test in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]
        for check in test.get("alert_rule_test", ())
    ]
    for alert in alerts():
        fires = ["exp_alerts" in check for check in checks if check["alertname"] == alert["alert"]]
        assert set(fires) == {True, False}, alert["alert"]


def test_keys_that_an_alert_or_a_runbook_names_exist() -> None:
    text = str([alert["annotations"] for alert in alerts()]) + RUNBOOKS.read_text(encoding="utf-8")
    keys = re.findall(
        r"\b(staleness|learner|weights|replay|verifier|teacher|rollout|actor)\.([a-z_]+)\b(?!\.)", text
    )
    assert keys
    values = yaml.safe_load((ROOT / "charts/slipstream/values.yaml").read_text(encoding="utf-8"))
    for section, key in keys:
        fields: Any = RunConfig.model_fields[section].annotation
        assert key in fields.model_fields or key in values[section], f"{section}.{key} is no key"


@pytest.mark.chart
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_promtool_finds_nothing_wrong_with_a_file(file: Path) -> None:
    promtool("check", "rules", file)


@pytest.mark.chart
@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_alerts_fire_when_they_should(file: Path) -> None:
    promtool("test", "rules", file)
