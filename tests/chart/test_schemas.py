"""The schemas of Kubernetes and of custom resources detect what a cluster would refuse or silently drop."""

from pathlib import Path
from typing import Any

import pytest
from chart.broken import ABSENT, broken
from chart.rendering import parse
from chart.schemas import KUBERNETES, custom_problems, kubernetes_problems, strict_problems

SMALL = parse((Path(__file__).parent / "small_release.yaml").read_text(encoding="utf-8"))[0]["items"]
REPLAY = "Deployment/demo-slipstream-replay"
SCALER = "ScaledObject/demo-slipstream-rollout-spot"
SET: dict[str, Any] = {
    "apiVersion": "leaderworkerset.x-k8s.io/v1",
    "kind": "LeaderWorkerSet",
    "metadata": {"name": "wide", "labels": {}},
    "spec": {
        "leaderWorkerTemplate": {
            "size": 2,
            "workerTemplate": {"metadata": {}, "spec": {"containers": [{"name": "worker", "image": "a:1"}]}},
        }
    },
}


@pytest.mark.parametrize("version", [KUBERNETES[0], KUBERNETES[-1]])
def test_the_hand_written_release_is_valid(version: str) -> None:
    assert kubernetes_problems(SMALL, version) == []


def test_the_error_of_a_key_that_kubernetes_would_drop_has_its_path() -> None:
    changed = broken(SMALL, REPLAY, "spec.template.spec.containers.0.imagePullPolicies", "Always")
    (problem,) = kubernetes_problems(changed, KUBERNETES[-1])
    assert problem.startswith(f"{REPLAY} in 1.37: spec.template.spec.containers.0: ")
    assert "imagePullPolicies" in problem


def test_a_field_is_refused_by_versions_that_lack_it() -> None:
    changed = broken(
        SMALL, REPLAY, "spec.template.spec.resources", {"limits": {"cpu": "1"}}
    )  # resources of a whole pod
    assert kubernetes_problems(changed, "1.31")
    assert kubernetes_problems(changed, "1.37") == []


def test_the_pod_templates_of_a_leader_worker_set_are_validated_as_pods() -> None:
    assert kubernetes_problems([SET], "1.37") == []
    changed = broken(
        [SET],
        "LeaderWorkerSet/wide",
        "spec.leaderWorkerTemplate.workerTemplate.spec.containers.0.images",
        "a",
    )
    (problem,) = kubernetes_problems(changed, "1.37")
    assert "images" in problem


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("spec.scaleTargetRef.name", ABSENT, "spec.scaleTargetRef: 'name' is a required property"),
        ("spec.triggers.0.metricType", "Values", "spec.triggers.0.metricType: 'Values' is not one of"),
        (
            "spec.triggers.0.metadata.threshold",
            1,
            "spec.triggers.0.metadata.threshold: 1 is not of type 'string'",
        ),
        ("spec.maxReplicas", 3, "spec: Additional properties are not allowed ('maxReplicas' was unexpected)"),
        ("spec.idleReplicaCount", 1, "spec.idleReplicaCount: 0 was expected"),
    ],
)
def test_a_scaled_object_that_keda_would_refuse_is_an_error(path: str, value: Any, text: str) -> None:
    assert text in strict_problems(broken(SMALL, SCALER, path, value))[0]


@pytest.mark.chart
def test_the_schemas_of_the_projects_of_custom_resources_are_used() -> None:
    assert custom_problems(SMALL) == []
    problems = custom_problems(broken(SMALL, SCALER, "spec.scaleTargetRef", "rollout"))
    assert any("spec/scaleTargetRef" in problem for problem in problems), problems
