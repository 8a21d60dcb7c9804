"""What an upgrade may change: no release becomes another by a change that Kubernetes refuses."""

from itertools import combinations
from typing import Any

from chart.combinations import SWITCHES, pairwise, release_of
from chart.manifests import Document, by_name, of_kind
from chart.release_small import small_release
from chart.rendering import render

MUTABLE = {
    "StatefulSet": {
        "replicas",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
        "ordinals",
    },
    "PersistentVolumeClaim": {"resources"},
}
NODES = {"nodes": 2, "checkpoints": {"accessModes": ["ReadWriteMany"]}}


def fixed(document: Document) -> dict[str, Any]:
    """What of an object an upgrade cannot change."""
    kind, spec = document["kind"], document.get("spec") or {}
    if kind == "Deployment":
        return {"selector": spec["selector"]}
    if kind == "Service":
        return {"clusterIP": spec.get("clusterIP", "")}
    if kind == "RoleBinding":
        return {"roleRef": document["roleRef"]}
    return {key: value for key, value in spec.items() if key not in MUTABLE[kind]} if kind in MUTABLE else {}


def refused(before: list[Document], after: list[Document]) -> list[str]:
    """The objects of both releases that Kubernetes would not change from the one to the other."""
    kinds = ("StatefulSet", "PersistentVolumeClaim", "Deployment", "Service", "RoleBinding")
    return [
        f"{kind}/{name}"
        for kind in kinds
        for name in by_name(before, kind).keys() & by_name(after, kind).keys()
        if fixed(by_name(before, kind)[name]) != fixed(by_name(after, kind)[name])
    ]


def test_every_combination_can_be_upgraded_to_every_other() -> None:
    """But for the access modes of a claim, which are the volume's."""
    releases = [render(release_of(row)) for row in pairwise(SWITCHES)]
    found = {name for before, after in combinations(releases, 2) for name in refused(before, after)}
    assert {name for name in found if not name.endswith("-checkpoints")} == set()


def test_a_learner_gets_more_machines_and_larger_volumes_by_an_upgrade() -> None:
    one = small_release(learner={**NODES, "nodes": 1})
    two = small_release(
        learner={**NODES, "checkpoints": {**NODES["checkpoints"], "size": "1Ti"}},
        redis={"persistence": {"size": "1Ti"}},
    )
    assert refused(render(one), render(two)) == []


def test_what_kubernetes_would_refuse_is_noticed() -> None:
    before, after = render(small_release()), render(small_release())
    of_kind(after, "StatefulSet")[0]["spec"]["volumeClaimTemplates"] = []
    of_kind(after, "Service")[0]["spec"]["clusterIP"] = "10.0.0.1"
    assert len(refused(before, after)) == 2


def test_a_learner_of_several_machines_is_replaced_as_a_whole() -> None:
    """One after the other never ends: a new rank waits for the others, which wait until it is ready."""
    (learner,) = [
        d
        for d in of_kind(render(small_release(learner=NODES)), "StatefulSet")
        if d["metadata"]["name"].endswith("-learner")
    ]
    assert learner["spec"]["podManagementPolicy"] == "Parallel"
    assert learner["spec"]["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "100%"},
    }
