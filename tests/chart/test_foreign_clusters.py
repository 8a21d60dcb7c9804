"""The circle on unusual machines: with IPv6 alone, and with user IDs that OpenShift chooses."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from chart.kubelet.image import DOCKER
from chart.kubelet.machine import Machine
from chart.kubelet.network import IPV4, IPV6, Family
from chart.manifests import Document, pod_templates
from chart.metrics_page import gauge
from chart.release_small import NAMESPACE, given_secrets, small_release
from chart.rendering import render
from chart.test_circle import START_SECONDS, eventually, learner
from render import EXAMPLES, read_release, render_objects

pytestmark = pytest.mark.chart
UNSET = {"runAsUser": None, "runAsGroup": None, "fsGroup": None}
RANGE = 1_000_680_000
"""The first user ID of a namespace, as OpenShift gives it."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is unusual about it."""

    values: dict[str, Any]
    family: Family = IPV4
    assigns_users: bool = False


CLUSTERS = {
    "ipv6": Cluster({"network": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]}}, family=IPV6),
    "openshift": Cluster(
        {"podSecurityContext": UNSET, "redis": {"podSecurityContext": UNSET}}, assigns_users=True
    ),
}


def assigned(documents: list[Document]) -> list[Document]:
    """The objects after OpenShift's restricted-v2: a user and an fsGroup of the namespace, and group 0.

    Errors: AssertionError for a pod that asks for a user or a group itself, which it refuses.
    """
    documents = deepcopy(documents)
    for pod in pod_templates(documents):
        context = pod.spec["securityContext"]
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(context), pod.name
        context |= {"runAsUser": RANGE, "runAsGroup": 0, "fsGroup": RANGE}
    return documents


@pytest.fixture(scope="module", params=CLUSTERS)
def cluster(request: pytest.FixtureRequest) -> Cluster:
    return CLUSTERS[request.param]


@pytest.fixture(scope="module")
def machine(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    directory: Path = tmp_path_factory.mktemp("machine")
    documents = render(small_release(**cluster.values))
    with Machine(directory / "node", namespace=NAMESPACE, family=cluster.family) as made:
        for name, data in given_secrets(directory / "certs").items():
            made.add_secret(name, data)
        made.apply(assigned(documents) if cluster.assigns_users else documents)
        made.wait_until_ready(seconds=START_SECONDS)
        yield made


def test_the_circle_trains(machine: Machine, cluster: Cluster) -> None:
    eventually(lambda: gauge(machine, learner(machine), "policy_version") >= 5, "five versions")
    assert gauge(machine, learner(machine), "fleet_workers") == 2
    assert {pod.restarts for pod in machine.pods.values()} == {0}
    version = 6 if cluster.family is IPV6 else 4
    assert {ip_address(pod.facts.pod_ip).version for pod in machine.pods.values()} == {version}


def test_the_example_for_openshift_asks_for_no_user_and_no_group() -> None:
    assert assigned(render_objects(read_release(EXAMPLES / "openshift-values.yaml")))


@pytest.mark.parametrize("where", ["learner", "actor", "replay", "verifier", "tests"])
def test_null_in_a_room_alone_leaves_the_field_out_of_its_pods(where: str) -> None:
    component = {"tests": "test"}.get(where, where)
    documents = render(small_release(**{where: {"podSecurityContext": UNSET}}))
    for pod in pod_templates(documents):
        context = pod.spec["securityContext"]
        assert None not in context.values(), pod.name
        assert ("runAsUser" in context) is (pod.component != component), pod.name


@pytest.mark.parametrize("file", sorted(DOCKER.glob("*.Dockerfile")), ids=lambda file: file.stem)
def test_the_directory_of_an_image_belongs_to_group_0(file: Path) -> None:
    """Any user ID of OpenShift's is in group 0."""
    text = file.read_text(encoding="utf-8")
    assert "install --directory --owner=10001 --group=0 --mode=0775 /runs" in text
