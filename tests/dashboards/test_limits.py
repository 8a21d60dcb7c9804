"""The colour of a panel changes at the limit of its alert."""

import math
from collections.abc import Iterator
from typing import Any

import promql_parser as promql
import pytest
from dashboards.boards import FOLDER, ask, panels, rules, walk

FROM_ALERTS = [
    ("overview", "Learner waits", "SlipstreamLearnerStarved", "red"),
    ("overview", "Pressure", "SlipstreamAutoscalerAtMaximum", "yellow"),
    ("fleet", "Pressure now", "SlipstreamAutoscalerAtMaximum", "yellow"),
    ("fleet", "Pressure", "SlipstreamAutoscalerAtMaximum", "yellow"),
    ("staleness", "Masked tokens", "SlipstreamStalenessAboveBound", "red"),
    ("replay", "Memory used", "SlipstreamRedisMemoryHigh", "red"),
    ("verifier", "Errors", "SlipstreamVerifierErrors", "red"),
    ("hardware", "Claims in use", "SlipstreamClaimFilling", "red"),
]


def panel(board: str, title: str) -> dict[str, Any]:
    (matching,) = [each for each in panels(board) if each["title"] == title]
    return matching


def steps(board: str, title: str) -> dict[str, float | None]:
    """Return the threshold of each colour of a panel."""
    thresholds = panel(board, title)["fieldConfig"]["defaults"]["thresholds"]["steps"]
    return {step["color"]: step["value"] for step in thresholds}


def compared_with(alert: str) -> set[float]:
    """Return the numbers with which an alert compares its series, from the syntax tree."""
    (rule,) = [rule for rule in rules() if rule.get("alert") == alert]
    return {
        node.rhs.val
        for node in walk(promql.parse(rule["expr"]))
        if isinstance(node, promql.BinaryExpr)
        and isinstance(node.rhs, promql.NumberLiteral)
        and str(node.op) == ">"
    }


@pytest.mark.parametrize(("board", "title", "alert", "color"), FROM_ALERTS)
def test_the_threshold_of_a_colour_is_the_limit_of_its_alert(
    board: str, title: str, alert: str, color: str
) -> None:
    assert {steps(board, title)[color]} == compared_with(alert)


@pytest.mark.parametrize(("board", "title"), [("overview", "Pressure"), ("fleet", "Pressure now")])
def test_a_pressure_of_1_is_green(drawing: Any, board: str, title: str) -> None:
    assert drawing.color_of(1.0, panel(board, title), []) == "green"
    assert drawing.color_of(1.2, panel(board, title), []) == "yellow"


@pytest.fixture
def drawing() -> Iterator[Any]:
    """Import the module that draws previews, with its folder on the path."""
    import importlib
    import sys

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield importlib.import_module("drawing")
        for name in ("drawing", "ask"):
            sys.modules.pop(name, None)


def answers_of(shown: dict[str, Any], limit: float | None) -> list[Any]:
    """Return the results of the two queries of a number: its value, always the same, and its limit."""
    value, of_limit = shown["targets"]
    series = [] if limit is None else [ask.Series(labels={}, times=[0.0, 1.0], values=[limit, math.nan])]
    return [(value, []), (of_limit, series)]


def test_token_age_is_red_from_the_staleness_bound_of_the_run(drawing: Any) -> None:
    shown = panel("overview", "Token age, p99")
    assert (
        'slipstream_bound{namespace="$namespace", release="$release", what="max_staleness"}'
        in (shown["targets"][1]["expr"])
    )
    for limit in (4.0, 16.0):
        assert drawing.color_of(limit - 1, shown, answers_of(shown, limit)) == "green"
        assert drawing.color_of(limit, shown, answers_of(shown, limit)) == "red"
    assert drawing.color_of(100.0, shown, answers_of(shown, None)) == "green"


def test_the_clip_fraction_is_red_from_the_limit_of_its_alert(drawing: Any) -> None:
    shown = panel("overview", "Clip fraction")
    (alert,) = [rule for rule in rules() if rule.get("alert") == "SlipstreamClipFractionHigh"]
    assert alert["expr"].split()[-1] == "slipstream:clip_fraction_limit"
    assert "slipstream:clip_fraction_limit{" in shown["targets"][1]["expr"]
    assert "by (side)" in shown["targets"][0]["expr"], "the alert compares each side by itself"
    assert drawing.color_of(0.25, shown, answers_of(shown, 0.2)) == "red"
    assert drawing.color_of(0.25, shown, answers_of(shown, 0.4)) == "green"


@pytest.mark.parametrize("title", ["Token age, p99", "Clip fraction"])
def test_the_second_query_is_the_threshold_of_the_panel_and_is_not_shown(title: str) -> None:
    (transformation,) = panel("overview", title)["transformations"]
    (mapping,) = transformation["options"]["mappings"]
    target = panel("overview", title)["targets"][1]
    assert (transformation["id"], transformation["options"]["configRefId"]) == ("configFromData", "B")
    assert (target["refId"], target["legendFormat"]) == ("B", mapping["fieldName"])
    assert mapping["handlerKey"] == "threshold1"


@pytest.mark.parametrize(
    ("board", "title", "limit"),
    [
        ("overview", "Token age", "max_staleness"),
        ("overview", "Clip fraction over time", "limit"),
        ("staleness", "Token age, quantiles", "max_staleness"),
        ("losses", "Clip fraction", "limit"),
        ("hardware", "Checkpoint lag", "limit"),
    ],
)
def test_a_limit_is_drawn_in_red(board: str, title: str, limit: str) -> None:
    overrides = panel(board, title)["fieldConfig"]["overrides"]
    colors = {one["matcher"]["options"]: one["properties"][0]["value"]["fixedColor"] for one in overrides}
    assert colors == {limit: "red"}


def test_token_age_and_clip_fraction_are_side_by_side_on_the_overview() -> None:
    age, clip = (panel("overview", t)["gridPos"] for t in ("Token age", "Clip fraction over time"))
    assert (age["y"], age["x"] + age["w"]) == (clip["y"], clip["x"])
