"""Gang scheduling: the objects have the labels and annotations that Kueue, Volcano and KAI read."""

from functools import cache

import pytest
from chart.manifests import Document, PodTemplate, by_name, pod_templates
from chart.rendering import render
from render import EXAMPLES, Release, read_release

QUEUE = {"kueue": "kueue.x-k8s.io/queue-name", "kai": "kai.scheduler/queue"}
SCHEDULER = {"kueue": None, "kai": "kai-scheduler", "volcano": "volcano"}
GROUP = "scheduling.k8s.io/group-name"
LEARNER = "demo-slipstream-learner"


@cache
def example(name: str) -> list[Document]:
    """Return the objects of an example of ci/."""
    return render(release(name))


def release(name: str) -> Release:
    return read_release(EXAMPLES / f"{name}-values.yaml")


def computing(name: str) -> list[PodTemplate]:
    """Return the pods with GPUs."""
    gpu_pods = [pod for pod in pod_templates(example(name)) if pod.component in ("learner", "rollout")]
    assert {pod.component for pod in gpu_pods} == {"learner", "rollout"}
    return gpu_pods


@pytest.mark.parametrize("name", QUEUE)
def test_workloads_with_gpus_name_their_queue(name: str) -> None:
    assert [pod.owner["metadata"]["labels"][QUEUE[name]] for pod in computing(name)] == ["research"] * 2


@pytest.mark.parametrize("name", QUEUE)
def test_a_learner_of_several_nodes_is_one_group(name: str) -> None:
    group = by_name(example(name), "LeaderWorkerSet")[LEARNER]["spec"]
    nodes = release(name).values["learner"]["nodes"]
    assert (group["replicas"], group["leaderWorkerTemplate"]["size"]) == (1, nodes)


@pytest.mark.parametrize("name", SCHEDULER)
def test_pods_with_gpus_have_the_scheduler_and_others_do_not(name: str) -> None:
    for pod in pod_templates(example(name)):
        wanted = SCHEDULER[name] if pod.component in ("learner", "rollout") else None
        assert pod.spec.get("schedulerName") == wanted, pod.name


def test_the_pod_group_of_volcano_has_the_size_of_the_learner() -> None:
    (learner,) = [pod for pod in computing("volcano") if pod.component == "learner"]
    group = by_name(example("volcano"), "PodGroup")[learner.metadata["annotations"][GROUP]]
    assert group["spec"]["minMember"] == learner.owner["spec"]["replicas"] == 2
    assert group["metadata"]["name"] == LEARNER
