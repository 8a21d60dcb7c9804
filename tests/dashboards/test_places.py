"""The panels "Use of the places" and "Places not used" of the dashboard Fleet: each place counts once."""

from pathlib import Path
from typing import Any

import pytest
from dashboards.boards import FILLED, RULES, ask, panels
from prometheus.promtool import promtool, selector, write_yaml

pytestmark = pytest.mark.chart
OURS = [("namespace", FILLED["namespace"]), ("release", FILLED["release"])]
USE = ("holds a group", "waits for admission", "not used")


def targets(title: str) -> list[dict[str, Any]]:
    (panel,) = [panel for panel in panels("fleet") if panel["title"] == title]
    targets: list[dict[str, Any]] = panel["targets"]
    return targets


def series(name: str, component: str, pod: str, value: int) -> dict[str, str]:
    labels = [*OURS, ("component", component), ("pod", pod)]
    return {"series": selector(f"slipstream_{name}", labels), "values": f"{value}x20"}


@pytest.mark.parametrize(
    ("waiting", "use"),
    [
        ((), (5, None, 7)),
        ((0, 0), (5, 0, 7)),
        ((3, 0), (5, 3, 4)),
        ((7, 7), (5, 7, 0)),
    ],
    ids=["no actor", "actors wait for nothing", "one waits for three places", "both wait for all"],
)
def test_a_place_holds_a_group_or_waits_or_is_not_used(
    tmp_path: Path, waiting: tuple[int, ...], use: tuple[int | None, ...]
) -> None:
    rows = [series("places", "rollout", f"w{i}", 6) for i in range(2)]
    rows += [series("groups_running", "rollout", "w0", 5)]
    rows += [series("places_waiting", "actor", f"a{i}", places) for i, places in enumerate(waiting)]
    panel = targets("Use of the places")
    assert [target["legendFormat"] for target in panel] == list(USE)
    assert sum(places or 0 for places in use) == 12
    checks = [(target["expr"], places) for target, places in zip(panel, use, strict=True)]
    (share,) = targets("Places not used")
    checks.append((f"12 * ({share['expr']})", use[2]))
    tests = [
        {
            "expr": ask.fill_in(expr, FILLED),
            "eval_time": "4m",
            "exp_samples": [] if places is None else [{"labels": "{}", "value": places}],
        }
        for expr, places in checks
    ]
    case = {"interval": "15s", "input_series": rows, "promql_expr_test": tests}
    test = {
        "rule_files": [str(RULES / "pressure.yaml")],
        "evaluation_interval": "15s",
        "tests": [case],
    }
    promtool("test", "rules", write_yaml(tmp_path / "places.yaml", test))
