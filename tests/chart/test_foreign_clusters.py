"""A release on a cluster with only IPv6, and on OpenShift, which chooses user ids."""

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
from chart.release_small import NAMESPACE, small_release, user_secrets
from chart.rendering import render
from chart.test_circle import START_SECONDS, eventually, learner
from render import EXAMPLES, read_release, render_objects

pytestmark = pytest.mark.chart
UNSET = {"runAsUser": None, "runAsGroup": None, "fsGroup": None}
RANGE = 1_000_680_000
"""The first user id of a namespace in OpenShift."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The properties of an unusual cluster."""

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
    """Return the objects with a user, an fsGroup and group 0, as restricted-v2 of OpenShift sets them.

    Errors: AssertionError for a pod that sets a user or a group, which restricted-v2 refuses.
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
        for name, data in user_secrets(directory / "certs").items():
            made.add_secret(name, data)
        made.apply(assigned(documents) if cluster.assigns_users else documents)
        made.wait_until_ready(seconds=START_SECONDS)
        yield made


def test_the_release_trains(machine: Machine, cluster: Cluster) -> None:
    eventually(lambda: gauge(machine, learner(machine), "policy_version") >= 5, "five versions")
    assert gauge(machine, learner(machine), "fleet_workers") == 2
    assert {pod.restarts for pod in machine.pods.values()} == {0}
    version = 6 if cluster.family is IPV6 else 4
    assert {ip_address(pod.facts.pod_ip).version for pod in machine.pods.values()} == {version}


def test_the_example_for_openshift_sets_no_user_and_no_group() -> None:
    assert assigned(render_objects(read_release(EXAMPLES / "openshift-values.yaml")))


@pytest.mark.parametrize("where", ["learner", "actor", "replay", "verifier", "tests"])
def test_null_in_the_values_of_a_component_removes_the_field_from_its_pods(where: str) -> None:
    component = {"tests": "test"}.get(where, where)
    documents = render(small_release(**{where: {"podSecurityContext": UNSET}}))
    for pod in pod_templates(documents):
        context = pod.spec["securityContext"]
        assert None not in context.values(), pod.name
        assert ("runAsUser" in context) is (pod.component != component), pod.name


@pytest.mark.parametrize("file", sorted(DOCKER.glob("*.Dockerfile")), ids=lambda file: file.stem)
def test_the_directory_of_an_image_belongs_to_group_0(file: Path) -> None:
    """OpenShift runs every container in group 0."""
    text = file.read_text(encoding="utf-8")
    assert "install --directory --owner=10001 --group=0 --mode=0775 /runs" in text
