"""What a platform team adds to the pods of a room: where it is rendered, and what is said of it."""

from typing import Any

import pytest
import yaml
from chart.external import external_names
from chart.guard_cases import TAUGHT
from chart.manifests import COMPONENT_LABEL, Document, PodTemplate, of_kind, pod_templates
from chart.policies.pod_security import pods_are_restricted
from chart.policies.table import violations
from chart.release_small import RUN, SMALL, small_release
from chart.rendering import merge, render
from chart.schemas import KUBERNETES, kubernetes_problems
from render import Release, render_files

CLAIMS = [{"name": "fabric", "resourceClaimTemplateName": "one-rail"}]
RESOURCES = {**SMALL, "claims": [{"name": "fabric"}]}
BESIDE = {"name": "shipper", "image": "shipper:1", "resources": SMALL}
FIRST = {"name": "first", "image": "first:1", "resources": SMALL}
ALL: dict[str, Any] = {
    "labels": {"kueue.x-k8s.io/queue-name": "research"},
    "annotations": {"example.com/owner": "research"},
    "schedulerName": "kai-scheduler",
    "dnsPolicy": "None",
    "dnsConfig": {"nameservers": ["10.0.0.10"]},
    "resourceClaims": CLAIMS,
    "resources": RESOURCES,
    "envFrom": [{"secretRef": {"name": "proxies"}}],
    "initContainers": [FIRST],
    "sidecars": [BESIDE],
}
TESTED = ("schedulerName", "dnsPolicy", "dnsConfig", "envFrom", "initContainers")
ROOMS = ("learner", "rollout", "actor", "verifier", "teacher", "replay", "redis", "test")
HOST = {"hostNetwork": True, "hostIPC": True}
CACHE = {"kind": "hostPath", "hostPath": "/a"}
NODES = {"policies": True, "nodeCIDRs": ["10.20.0.0/16"]}
STRICT = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
NOT_RESTRICTED: list[dict[str, Any]] = [
    {"hostNetwork": True},
    {"hostIPC": True},
    {"extraVolumes": [{"name": "a", "hostPath": {"path": "/a"}}]},
    {"securityContext": {"allowPrivilegeEscalation": True}},
    {"securityContext": {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}},
    {"podSecurityContext": {"runAsNonRoot": False}},
    {"podSecurityContext": {"seccompProfile": {"type": "Unconfined"}}},
    {"podSecurityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]}},
    {"initContainers": [{**FIRST, "securityContext": {"privileged": True}}]},
    {"sidecars": [{**BESIDE, "securityContext": {"allowPrivilegeEscalation": False}}]},
    {"sidecars": [{**BESIDE, "ports": [{"containerPort": 7, "hostPort": 7}]}]},
]
RESTRICTED: list[dict[str, Any]] = [
    {},
    {"initContainers": [FIRST], "sidecars": [BESIDE]},
    {"extraVolumes": [{"name": "a", "emptyDir": {}}]},
    {"securityContext": {"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}},
    {"sidecars": [{**BESIDE, "securityContext": STRICT}]},
]


def release(room: dict[str, Any], **values: Any) -> Release:
    """A release with a teacher; every room has these values, and the pods of `helm test` those of TESTED."""
    run = yaml.safe_load(RUN) | {k: v for k, v in yaml.safe_load(TAUGHT).items() if k != "model"}
    tests = {key: room[key] for key in TESTED if key in room}
    rooms: dict[str, Any] = {name: room for name in ("learner", "actor", "verifier", "replay", "redis")}
    rooms["teacher"] = {**room, "gpu": {"count": 0}, "models": {"existingClaim": "teacher"}}
    rooms |= {"rollout": {"defaults": room}, "tests": tests, "run": {"config": yaml.safe_dump(run)}}
    return small_release(**merge(rooms, values))


def pods(documents: list[Document]) -> dict[str, PodTemplate]:
    """One pod of each room."""
    return {pod.component: pod for pod in pod_templates(documents)}


def notes(of: Release) -> str:
    return render_files(of)["NOTES.txt"]


@pytest.fixture(scope="module")
def everything() -> list[Document]:
    return render(release(ALL))


@pytest.mark.parametrize("room", ROOMS)
def test_a_pod_has_what_its_room_adds(everything: list[Document], room: str) -> None:
    pod = pods(everything)[room]
    assert pod.spec["schedulerName"] == "kai-scheduler"
    assert (pod.spec["dnsPolicy"], pod.spec["dnsConfig"]) == ("None", ALL["dnsConfig"])
    first = (pod.spec["initContainers"])[0]
    assert (first["name"], first["image"]) == ("first", "first:1")
    assert pod.containers[0]["envFrom"] == ALL["envFrom"]
    if room != "test":
        assert pod.spec["resourceClaims"] == CLAIMS
        assert pod.containers[0]["resources"]["claims"] == RESOURCES["claims"]
        assert [container["name"] for container in pod.containers] == [room, "shipper"]


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "test"])
def test_a_workload_has_the_labels_of_its_room_and_its_pods_have_them_not(
    everything: list[Document], room: str
) -> None:
    pod = pods(everything)[room]
    assert ALL["labels"].items() <= pod.owner["metadata"]["labels"].items()
    assert ALL["annotations"].items() <= pod.owner["metadata"]["annotations"].items()
    assert not ALL["labels"].items() & pod.labels.items()


def test_other_objects_have_no_labels_of_a_workload(everything: list[Document]) -> None:
    owners = [pod.owner for pod in pod_templates(everything)]
    others = [d for d in everything if d not in owners]
    assert [d for d in others if ALL["labels"].items() & (d["metadata"].get("labels") or {}).items()] == []


def test_it_meets_every_policy_and_is_valid_where_devices_are_claimed_so(everything: list[Document]) -> None:
    external = {*external_names(release(ALL)), "proxies"}
    assert violations(everything, external=external) == []
    for version in KUBERNETES[2:]:  # until 1.30 a pod named its claim another way
        assert kubernetes_problems(everything, version) == []


def test_what_it_adds_runs_before_the_model_is_made() -> None:
    for room, own in (("learner", ["check", "model"]), ("rollout", ["model"]), ("actor", ["model"])):
        initial = pods(render(release({"initContainers": [FIRST]})))[room].spec["initContainers"]
        assert [container["name"] for container in initial] == ["first", *own]


def test_a_container_without_a_security_context_gets_that_of_its_room_and_another_keeps_its_own() -> None:
    own = {"runAsUser": 12345}
    added = {"sidecars": [BESIDE, {**BESIDE, "name": "other", "securityContext": own}]}
    documents = render(release({**added, "securityContext": {"runAsUser": 4321}}))
    for pod in (pods(documents)[room] for room in ROOMS if room != "test"):
        ours, first, second = pod.containers
        assert ours["securityContext"] == first["securityContext"]
        assert second["securityContext"] == own


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "test"])
def test_a_pod_on_the_network_of_its_node_still_finds_services(room: str) -> None:
    spec = pods(render(release(HOST, network=NODES)))[room].spec
    assert (spec["hostNetwork"], spec["hostIPC"]) == (True, True)
    assert spec["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_a_pod_without_any_of_it_leaves_all_to_the_cluster() -> None:
    keys = ("hostNetwork", "hostIPC", "dnsPolicy", "dnsConfig", "schedulerName", "resourceClaims")
    for pod in pod_templates(render(release({}))):
        assert [key for key in keys if key in pod.spec] == []


def test_pods_on_the_network_of_their_nodes_are_replaced_without_a_node_more() -> None:
    for deployment in of_kind(render(release(HOST, network=NODES)), "Deployment"):
        assert deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0


@pytest.mark.parametrize("room", NOT_RESTRICTED, ids=str)
def test_what_leaves_the_restricted_standard_is_said_for_every_room_that_has_it(room: dict[str, Any]) -> None:
    wanted = {"learner", "rollout.pools[default]", "actor", "verifier", "teacher", "replay", "redis"}
    wanted |= {"tests"} if "initContainers" in room else set()
    given = release(room, network=NODES)
    found = {
        line.removeprefix("  - ").partition(": ")[0] for line in notes(given).splitlines() if ": " in line
    }
    assert wanted <= found
    problems = list(pods_are_restricted(render(given)))
    assert len({problem.partition(":")[0].partition(" ")[0] for problem in problems}) >= len(wanted)


@pytest.mark.parametrize("room", RESTRICTED, ids=str)
def test_nothing_is_said_of_what_keeps_the_restricted_standard(room: dict[str, Any]) -> None:
    given = release(room)
    assert list(pods_are_restricted(render(given))) == []
    assert "restricted" not in notes(given)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"model": {"cache": CACHE}}, "- rollout.pools[default]: model.cache.hostPath"),
        ({"teacher": {"models": {"existingClaim": "", "hostPath": "/a"}}}, "- teacher: models.hostPath"),
        ({"verifier": {"models": {"hostPath": "/a"}}}, "- verifier: models.hostPath"),
    ],
    ids=str,
)  # fmt: skip
def test_a_directory_of_the_node_leaves_the_restricted_standard(values: dict[str, Any], line: str) -> None:
    given = release({}, **values)
    assert line in notes(given)
    assert any("hostPath" in problem for problem in pods_are_restricted(render(given)))


def test_the_notes_say_what_the_network_of_a_node_means() -> None:
    said = " ".join(notes(small_release(learner={"hostNetwork": True}, network=NODES)).split())
    assert "learner has the network of the node" in said
    assert "NetworkPolicies do not hold for these pods themselves" in said
    assert "10.20.0.0/16 reaches what these pods may reach" in said
    assert "such as 9464 of all rooms but redis, are never on one node" in said


def test_gpus_of_claims_are_no_extended_resource_and_still_make_ranks() -> None:
    gpus = {
        "gpu": {"resource": "", "count": 2},
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "two-gpus"}],
        "resources": {**SMALL, "claims": [{"name": "gpus"}]},
    }
    one = merge(gpus, {"gpu": {"count": 1}})
    run = "model: {tiny: {}}\ndata: {kind: addition, digits: 1}\nalgorithm: {preset: grpo}\n"
    found = pods(render(small_release(learner=gpus, rollout={"defaults": one}, run={"config": run})))
    for room in ("learner", "rollout"):
        container = found[room].containers[0]
        assert container["resources"]["claims"] == [{"name": "gpus"}]
        assert {*container["resources"]["requests"], *container["resources"]["limits"]} == {"cpu", "memory"}
        assert "NVIDIA_VISIBLE_DEVICES" not in {variable["name"] for variable in container["env"]}
    assert found["learner"].containers[0]["args"][0] == "2"
    assert found["learner"].labels[COMPONENT_LABEL] == "learner"
