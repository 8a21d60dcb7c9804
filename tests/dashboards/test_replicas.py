"""The panel "Replicas" of the dashboard Fleet shows every pool of the release, and nothing of another one."""

from pathlib import Path
from typing import Any

import pytest
from dashboards.boards import FILLED, ask, panels
from prometheus.promtool import promtool, selector, write_yaml

pytestmark = pytest.mark.chart
(PANEL,) = [panel for panel in panels("fleet") if panel["title"] == "Replicas"]
WORKLOADS = {
    "deployment": {
        "first-slipstream-rollout-default": 4,
        "first-rollout-spot": 2,  # with nameOverride or fullnameOverride
        "first2-slipstream-rollout-default": 7,
        "first-b-slipstream-rollout-default": 7,
        "first-slipstream-verifier": 7,
    },
    "statefulset": {
        "first-slipstream-rollout-big": 2,
        "first-slipstream-rollout-big-0": 3,  # the pods of a group beside its leader
        "first-slipstream-rollout-big-1": 3,
        "first-slipstream-rollout-wide-1": 5,  # a pool named wide-1
        "first-slipstream-rollout-wide-1-0": 3,
        "first2-slipstream-rollout-big": 7,
        "first-slipstream-learner": 1,
    },
}
SERIES = (
    ("deployment", "kube_deployment_spec_replicas"),
    ("deployment", "kube_deployment_status_replicas_ready"),
    ("statefulset", "kube_statefulset_replicas"),
    ("statefulset", "kube_statefulset_status_replicas_ready"),
)


def shown(pool: str) -> dict[str, dict[str, int]]:
    """Return the workloads that the panel should show for a choice of pools, by kind."""
    of = {
        ".*": {"first-slipstream-rollout-default", "first-rollout-spot", "first-slipstream-rollout-big"}
        | {"first-slipstream-rollout-wide-1"},
        "default|big": {"first-slipstream-rollout-default", "first-slipstream-rollout-big"},
        "wide-1": {"first-slipstream-rollout-wide-1"},
    }[pool]
    return {kind: {n: v for n, v in replicas.items() if n in of} for kind, replicas in WORKLOADS.items()}


def inputs() -> list[dict[str, str]]:
    """Return the series of kube-state-metrics, for the release's namespace and for another one."""
    return [
        {"series": selector(name, [("namespace", space), (kind, workload)]), "values": str(value + more)}
        for kind, name in SERIES
        for workload, value in WORKLOADS[kind].items()
        for space, more in (("rl", 0), ("other", 100))
    ]


@pytest.mark.parametrize("pool", [".*", "default|big", "wide-1"])
def test_the_panel_shows_the_pools_of_the_release_and_nothing_else(tmp_path: Path, pool: str) -> None:
    variables = {**FILLED, "release": "first", "pool": pool}
    tests: list[dict[str, Any]] = []
    for (kind, _), target in zip(SERIES, PANEL["targets"], strict=True):
        samples = [
            {"labels": selector("", [(kind, name)]), "value": value}
            for name, value in shown(pool)[kind].items()
        ]
        expr = ask.fill_in(target["expr"], variables)
        tests.append({"expr": expr, "eval_time": "0m", "exp_samples": samples})
    case = {"interval": "1m", "input_series": inputs(), "promql_expr_test": tests}
    promtool("test", "rules", write_yaml(tmp_path / "replicas.yaml", {"rule_files": [], "tests": [case]}))


def test_the_legends_use_labels_that_the_series_have() -> None:
    assert [target["legendFormat"] for target in PANEL["targets"]] == [
        "{{deployment}}, wanted",
        "{{deployment}}, ready",
        "{{statefulset}}, wanted",
        "{{statefulset}}, ready",
    ]
