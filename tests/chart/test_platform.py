"""Settings of a platform team for the pods of a component: their rendering, and the notes about them."""

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
COMPONENTS = ("learner", "rollout", "actor", "verifier", "teacher", "replay", "redis", "test")
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


def release(settings: dict[str, Any], **values: Any) -> Release:
    """Return a release whose components all have `settings`, and `helm test` those of TESTED."""
    run = yaml.safe_load(RUN) | {k: v for k, v in yaml.safe_load(TAUGHT).items() if k != "model"}
    tests = {key: settings[key] for key in TESTED if key in settings}
    components: dict[str, Any] = {
        name: settings for name in ("learner", "actor", "verifier", "replay", "redis")
    }
    components["teacher"] = {**settings, "gpu": {"count": 0}, "models": {"existingClaim": "teacher"}}
    components |= {"rollout": {"defaults": settings}, "tests": tests, "run": {"config": yaml.safe_dump(run)}}
    return small_release(**merge(components, values))


def pods(documents: list[Document]) -> dict[str, PodTemplate]:
    """Return one pod of each component."""
    return {pod.component: pod for pod in pod_templates(documents)}


def notes(of: Release) -> str:
    return render_files(of)["NOTES.txt"]


@pytest.fixture(scope="module")
def everything() -> list[Document]:
    return render(release(ALL))


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_pod_has_the_settings_of_its_component(everything: list[Document], component: str) -> None:
    pod = pods(everything)[component]
    assert pod.spec["schedulerName"] == "kai-scheduler"
    assert (pod.spec["dnsPolicy"], pod.spec["dnsConfig"]) == ("None", ALL["dnsConfig"])
    first = (pod.spec["initContainers"])[0]
    assert (first["name"], first["image"]) == ("first", "first:1")
    assert pod.containers[0]["envFrom"] == ALL["envFrom"]
    if component != "test":
        assert pod.spec["resourceClaims"] == CLAIMS
        assert pod.containers[0]["resources"]["claims"] == RESOURCES["claims"]
        assert [container["name"] for container in pod.containers] == [component, "shipper"]


@pytest.mark.parametrize("component", [component for component in COMPONENTS if component != "test"])
def test_a_workload_has_the_labels_of_its_component_and_its_pods_do_not(
    everything: list[Document], component: str
) -> None:
    pod = pods(everything)[component]
    assert ALL["labels"].items() <= pod.owner["metadata"]["labels"].items()
    assert ALL["annotations"].items() <= pod.owner["metadata"]["annotations"].items()
    assert not ALL["labels"].items() & pod.labels.items()


def test_other_objects_have_no_labels_of_a_workload(everything: list[Document]) -> None:
    owners = [pod.owner for pod in pod_templates(everything)]
    others = [d for d in everything if d not in owners]
    assert [d for d in others if ALL["labels"].items() & (d["metadata"].get("labels") or {}).items()] == []


def test_a_release_with_all_settings_meets_every_policy_and_is_valid(everything: list[Document]) -> None:
    external = {*external_names(release(ALL)), "proxies"}
    assert violations(everything, external=external) == []
    for version in KUBERNETES[2:]:  # until 1.30 pods named their claims differently
        assert kubernetes_problems(everything, version) == []


def test_an_added_init_container_runs_before_the_model_is_created() -> None:
    for component, own in (("learner", ["check", "model"]), ("rollout", ["model"]), ("actor", ["model"])):
        initial = pods(render(release({"initContainers": [FIRST]})))[component].spec["initContainers"]
        assert [container["name"] for container in initial] == ["first", *own]


def test_an_added_container_has_its_own_security_context_or_that_of_its_component() -> None:
    own = {"runAsUser": 12345}
    added = {"sidecars": [BESIDE, {**BESIDE, "name": "other", "securityContext": own}]}
    documents = render(release({**added, "securityContext": {"runAsUser": 4321}}))
    for pod in (pods(documents)[component] for component in COMPONENTS if component != "test"):
        ours, first, second = pod.containers
        assert ours["securityContext"] == first["securityContext"]
        assert second["securityContext"] == own


@pytest.mark.parametrize("component", [component for component in COMPONENTS if component != "test"])
def test_a_pod_on_the_network_of_its_node_resolves_services(component: str) -> None:
    spec = pods(render(release(HOST, network=NODES)))[component].spec
    assert (spec["hostNetwork"], spec["hostIPC"]) == (True, True)
    assert spec["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_a_pod_without_these_settings_has_the_defaults_of_the_cluster() -> None:
    keys = ("hostNetwork", "hostIPC", "dnsPolicy", "dnsConfig", "schedulerName", "resourceClaims")
    for pod in pod_templates(render(release({}))):
        assert [key for key in keys if key in pod.spec] == []


def test_pods_on_the_network_of_their_nodes_are_replaced_without_a_further_node() -> None:
    for deployment in of_kind(render(release(HOST, network=NODES)), "Deployment"):
        assert deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0


@pytest.mark.parametrize("settings", NOT_RESTRICTED, ids=str)
def test_the_notes_name_every_component_that_violates_the_restricted_standard(
    settings: dict[str, Any],
) -> None:
    wanted = {"learner", "rollout.pools[default]", "actor", "verifier", "teacher", "replay", "redis"}
    wanted |= {"tests"} if "initContainers" in settings else set()
    rendered_release = release(settings, network=NODES)
    noted = {
        line.removeprefix("  - ").partition(": ")[0]
        for line in notes(rendered_release).splitlines()
        if ": " in line
    }
    assert wanted <= noted
    problems = list(pods_are_restricted(render(rendered_release)))
    assert len({problem.partition(":")[0].partition(" ")[0] for problem in problems}) >= len(wanted)


@pytest.mark.parametrize("settings", RESTRICTED, ids=str)
def test_the_notes_do_not_mention_settings_within_the_restricted_standard(settings: dict[str, Any]) -> None:
    rendered_release = release(settings)
    assert list(pods_are_restricted(render(rendered_release))) == []
    assert "restricted" not in notes(rendered_release)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"model": {"cache": CACHE}}, "- rollout.pools[default]: model.cache.hostPath"),
        ({"teacher": {"models": {"existingClaim": "", "hostPath": "/a"}}}, "- teacher: models.hostPath"),
        ({"verifier": {"models": {"hostPath": "/a"}}}, "- verifier: models.hostPath"),
    ],
    ids=str,
)  # fmt: skip
def test_a_directory_of_the_node_violates_the_restricted_standard(values: dict[str, Any], line: str) -> None:
    rendered_release = release({}, **values)
    assert line in notes(rendered_release)
    assert any("hostPath" in problem for problem in pods_are_restricted(render(rendered_release)))


def test_the_notes_explain_the_network_of_a_node() -> None:
    text = " ".join(notes(small_release(learner={"hostNetwork": True}, network=NODES)).split())
    assert "learner has the network of the node" in text
    assert "NetworkPolicies do not hold for these pods themselves" in text
    assert "10.20.0.0/16 reaches what these pods may reach" in text
    assert "such as 9464 of all components but redis, are never on one node" in text


def test_gpus_of_claims_are_no_extended_resource_and_still_count_as_ranks() -> None:
    gpus = {
        "gpu": {"resource": "", "count": 2},
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "two-gpus"}],
        "resources": {**SMALL, "claims": [{"name": "gpus"}]},
    }
    one = merge(gpus, {"gpu": {"count": 1}})
    run = "model: {tiny: {}}\ndata: {kind: addition, digits: 1}\nalgorithm: {preset: grpo}\n"
    rendered_pods = pods(render(small_release(learner=gpus, rollout={"defaults": one}, run={"config": run})))
    for component in ("learner", "rollout"):
        container = rendered_pods[component].containers[0]
        assert container["resources"]["claims"] == [{"name": "gpus"}]
        assert {*container["resources"]["requests"], *container["resources"]["limits"]} == {"cpu", "memory"}
        assert "NVIDIA_VISIBLE_DEVICES" not in {variable["name"] for variable in container["env"]}
    assert rendered_pods["learner"].containers[0]["args"][0] == "2"
    assert rendered_pods["learner"].labels[COMPONENT_LABEL] == "learner"
