"""The chart's Role has the code's permissions, and may change only objects of the release, by name."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster.conftest import ROLE

RUN = Path(__file__).parents[2] / "examples" / "addition.yaml"
WIDE = {"rollout": {"tensor_parallel": 2}}
GPUS = {"gpu": {"count": 2}}
POOLS = [
    {"name": "steady", **GPUS},
    {"name": "spot", "autoscaling": {"kind": "keda"}, **GPUS},
    {"name": "wide", "nodes": 2},
]
VALUES = {
    "run": {"config": yaml.safe_dump(yaml.safe_load(RUN.read_text(encoding="utf-8")) | WIDE)},
    "rollout": {"pools": POOLS},
    "redis": {"auth": {"existingSecret": "redis-password"}},
    "monitoring": {"rules": {"from": "elsewhere"}},
    "autoscaling": {"prometheus": {"address": "http://prometheus:9090"}},
    "cluster": {"rbac": {"create": True, "subjects": [{"kind": "User", "name": "me"}]}},
}


GROUPED = {"nodes": 2, "workload": "LeaderWorkerSet", "checkpoints": {"accessModes": ["ReadWriteMany"]}}


@pytest.fixture(scope="module")
def rules() -> list[dict[str, Any]]:
    return rules_of(VALUES)


def rules_of(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rules of the Role of a release."""
    from chart.rendering import Release, render  # imported late: it needs helm

    documents = render(Release(name="run1", namespace="team", values=values))
    (role,) = [document for document in documents if document["kind"] == "Role"]
    role_rules: list[dict[str, Any]] = role["rules"]
    return role_rules


def changed_by(rules: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Return the names of the objects that the rules allow to change, by resource."""
    changed: dict[str, set[str]] = {}
    for rule in rules:
        if "patch" in rule["verbs"]:
            (resource,) = rule["resources"]
            changed.setdefault(resource, set()).update(rule["resourceNames"])
    return changed


@pytest.mark.chart
def test_the_role_gives_these_rights_and_no_others(rules: list[dict[str, Any]]) -> None:
    rights = {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert rights == ROLE


@pytest.mark.chart
def test_every_rule_that_allows_a_change_names_its_objects(rules: list[dict[str, Any]]) -> None:
    assert changed_by(rules) == {
        "configmaps": {"run1-slipstream-paused"},
        "deployments/scale": {"run1-slipstream-rollout-steady", "run1-slipstream-rollout-spot"},
        "leaderworkersets/scale": {"run1-slipstream-rollout-wide"},
        "statefulsets/scale": {"run1-slipstream-learner"},
        "scaledobjects": {"run1-slipstream-rollout-spot"},
    }


@pytest.mark.chart
def test_a_learner_of_several_pods_is_paused_through_its_leader_worker_set() -> None:
    rules = rules_of({**VALUES, "learner": GROUPED})
    changed = changed_by(rules)
    assert changed["leaderworkersets/scale"] == {"run1-slipstream-learner", "run1-slipstream-rollout-wide"}
    assert "statefulsets/scale" not in changed
