"""Upgrades of a release contain no change that Kubernetes refuses."""

import signal
import subprocess
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from chart.combinations import SWITCHES, pairwise, release_of
from chart.manifests import Document, by_name, of_kind, pod_templates
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
GROUP = {**NODES, "workload": "LeaderWorkerSet"}
LEARNER = "demo-slipstream-learner"
RETRY = slice(3, 7)
"""The arguments after `tini -g --` that run a command again when it fails."""
SECONDS = 20.0


def fixed(document: Document) -> dict[str, Any]:
    """Return the part of an object that an upgrade cannot change."""
    kind, spec = document["kind"], document.get("spec") or {}
    if kind == "Deployment":
        return {"selector": spec["selector"]}
    if kind == "Service":
        return {"clusterIP": spec.get("clusterIP", "")}
    if kind == "RoleBinding":
        return {"roleRef": document["roleRef"]}
    return {key: value for key, value in spec.items() if key not in MUTABLE[kind]} if kind in MUTABLE else {}


def refused(before: list[Document], after: list[Document]) -> list[str]:
    """Return the objects of both releases whose change Kubernetes refuses."""
    kinds = ("StatefulSet", "PersistentVolumeClaim", "Deployment", "Service", "RoleBinding")
    return [
        f"{kind}/{name}"
        for kind in kinds
        for name in by_name(before, kind).keys() & by_name(after, kind).keys()
        if fixed(by_name(before, kind)[name]) != fixed(by_name(after, kind)[name])
    ]


def test_every_combination_can_be_upgraded_to_every_other_one() -> None:
    """The exception is the access modes of a claim, which depend on the volume."""
    releases = [render(release_of(row)) for row in pairwise(SWITCHES)]
    refused_names = {name for before, after in combinations(releases, 2) for name in refused(before, after)}
    assert {name for name in refused_names if not name.endswith("-checkpoints")} == set()


def test_an_upgrade_can_give_a_learner_more_nodes_and_larger_volumes() -> None:
    one = small_release(learner={**NODES, "nodes": 1})
    two = small_release(
        learner={**NODES, "checkpoints": {**NODES["checkpoints"], "size": "1Ti"}},
        redis={"persistence": {"size": "1Ti"}},
    )
    assert refused(render(one), render(two)) == []


def test_a_change_that_kubernetes_refuses_is_detected() -> None:
    before, after = render(small_release()), render(small_release())
    of_kind(after, "StatefulSet")[0]["spec"]["volumeClaimTemplates"] = []
    of_kind(after, "Service")[0]["spec"]["clusterIP"] = "10.0.0.1"
    assert len(refused(before, after)) == 2


def test_the_pods_of_a_learner_of_several_nodes_are_replaced_together() -> None:
    """A rolling update would never end: a new rank waits for others, which wait until it is ready."""
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


def test_a_learner_as_a_leader_worker_set_is_one_group_that_restarts_as_a_whole() -> None:
    documents = render(small_release(learner=GROUP))
    spec = by_name(documents, "LeaderWorkerSet")[LEARNER]["spec"]
    assert LEARNER not in by_name(documents, "StatefulSet")
    assert (spec["replicas"], spec["leaderWorkerTemplate"]["size"]) == (1, 2)
    assert spec["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    assert spec["startupPolicy"] == "LeaderCreated"
    assert spec["rolloutStrategy"]["rollingUpdateConfiguration"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_the_pods_of_both_workloads_differ_only_in_the_source_of_their_rank() -> None:
    (group,) = learners(render(small_release(learner=GROUP)))
    (stateful,) = learners(render(small_release(learner=NODES)))
    one, other = group["spec"]["containers"][0], stateful["spec"]["containers"][0]
    assert index_label(one) == "leaderworkerset.sigs.k8s.io/worker-index"
    assert index_label(other) == "apps.kubernetes.io/pod-index"
    assert f"--master-addr={LEARNER}-ranks" in one["args"]
    assert f"--master-addr={LEARNER}-0.{LEARNER}-ranks" in other["args"]
    for container in (one, other):
        container["env"] = [variable for variable in container["env"] if variable["name"] != "NODE_RANK"]
        container["args"] = [word for word in container["args"] if not word.startswith("--master-addr")]
    for pod in (group, stateful):
        for container in pod["spec"]["initContainers"]:
            container["command"] = once(container["command"])
    assert group == stateful


def test_the_ranks_of_a_group_reach_its_first_pod_before_it_is_ready() -> None:
    service = by_name(render(small_release(learner=GROUP)), "Service")[f"{LEARNER}-ranks"]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert service["selector"]["statefulset.kubernetes.io/pod-name"] == f"{LEARNER}-0"


def test_objects_that_leader_worker_set_creates_have_no_name_of_the_chart() -> None:
    """It creates a StatefulSet for the first pods, one for the others of each group, and Services."""
    pool = {"defaults": {"gpu": {"count": 1}}, "pools": [{"name": "wide", "nodes": 2}]}
    run = "model: {tiny: {}}\ndata: {kind: addition, digits: 1}\nrollout: {tensor_parallel: 2}\n"
    learner = {**GROUP, "gpu": {"count": 1}}
    documents = render(small_release(learner=learner, rollout=pool, run={"config": run}))
    groups = by_name(documents, "LeaderWorkerSet")
    assert len(groups) == 2
    for name, group in groups.items():
        own = group["spec"].get("networkConfig", {}).get("subdomainPolicy") == "UniquePerReplica"
        assert not {name, f"{name}-0"} & by_name(documents, "StatefulSet").keys()
        assert not {f"{name}-0" if own else name} & by_name(documents, "Service").keys()


def test_a_command_that_may_fail_in_a_group_is_retried_inside_its_init_container() -> None:
    """LeaderWorkerSet would replace the whole group after a restart of an init container."""
    pool = {"defaults": {"gpu": {"count": 1}}, "pools": [{"name": "wide", "nodes": 2}, {"name": "narrow"}]}
    run = "model: {tiny: {}}\ndata: {kind: addition, digits: 1}\nrollout: {tensor_parallel: 2}\n"
    pool["pools"][1]["gpu"] = {"count": 2}
    learner = {**GROUP, "gpu": {"count": 1}}
    documents = render(small_release(learner=learner, rollout=pool, run={"config": run}))
    commands = {
        (pod.owner["kind"], pod.component, container["name"]): once(command) != command
        for pod in pod_templates(documents)
        for container in pod.spec.get("initContainers") or []
        for command in [container["command"]]
    }
    assert commands == {
        ("LeaderWorkerSet", "learner", "check"): True,
        ("LeaderWorkerSet", "learner", "model"): True,
        ("LeaderWorkerSet", "rollout", "model"): True,
        ("Deployment", "rollout", "model"): False,
        ("Deployment", "actor", "model"): False,
    }


def again(*words: str, pause: str) -> list[str]:
    """Return the retry wrapper of the check of a group's learner, with another pause, around a command."""
    (pod,) = learners(render(small_release(learner=GROUP)))
    (check,) = [c for c in pod["spec"]["initContainers"] if c["name"] == "check"]
    prefix = [word.replace("sleep 60", f"sleep {pause}") for word in check["command"][: RETRY.stop]]
    assert check["command"][RETRY.stop] == "python"
    assert "sleep 60" in check["command"][RETRY.stop - 2]
    return [*prefix, *words]


@pytest.mark.chart
def test_a_command_that_fails_in_a_group_is_retried_until_it_succeeds(tmp_path: Path) -> None:
    script = 'echo "$2" >> "$1"; test "$(wc -l < "$1")" -eq 3'
    ended = subprocess.run(
        again("sh", "-c", script, "sh", str(tmp_path / "tries"), "two words", pause="0.01"),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0
    assert (tmp_path / "tries").read_text() == "two words\n" * 3
    assert ended.stderr.count("is run again in 60 seconds") == 2


@pytest.mark.chart
@pytest.mark.parametrize("words", [("sleep", "600"), ("false",)], ids=["at work", "in the pause"])
def test_sigterm_ends_a_command_of_a_group_and_its_pause(words: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        again("sh", "-c", 'echo begun; exec "$@"', "sh", *words, pause="600"), stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        time.sleep(0.2)
        process.terminate()
        assert process.wait(SECONDS) == 128 + signal.SIGTERM
        assert process.stdout.read() == b"", "a process of it holds the pipe, or has begun again"
    finally:
        process.kill()
        process.stdout.close()


def once(command: list[str]) -> list[str]:
    """Return a command without its retry wrapper."""
    return [*command[: RETRY.start], *command[RETRY.stop :]] if "until " in str(command[RETRY]) else command


def learners(documents: list[Document]) -> list[Document]:
    """Return the pod templates of the learner."""
    return [
        {"metadata": pod.metadata, "spec": pod.spec}
        for pod in pod_templates(documents)
        if pod.component == "learner"
    ]


def index_label(container: Document) -> str:
    """Return the label from which a container gets the rank of its node."""
    (rank_variable,) = [variable for variable in container["env"] if variable["name"] == "NODE_RANK"]
    path: str = rank_variable["valueFrom"]["fieldRef"]["fieldPath"]
    return path.removeprefix("metadata.labels['").removesuffix("']")
