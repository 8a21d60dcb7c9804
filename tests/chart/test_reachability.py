"""The evaluator of NetworkPolicies agrees with the documentation of Kubernetes."""

from typing import Any

import pytest
from chart.reachability import Place, passes, reached

API = Place(name="api", namespace="here", labels={"app": "api"}, address="10.1.0.1", ports={"grpc": 50051})
JOB = Place(name="job", namespace="here", labels={"app": "job"}, address="10.1.0.2")
FAR = Place(name="far", namespace="there", labels={"app": "job"}, address="10.2.0.1")
WORLD = Place(name="world", address="93.184.216.34")
WORLD_LESS = {"cidr": "0.0.0.0/0", "except": ["93.184.0.0/16"]}
THERE = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "there"}}}
TO_JOBS = {"podSelector": {"matchLabels": {"app": "job"}}}


def policy(app: str, **spec: Any) -> dict[str, Any]:
    """Return a policy for the pods of an app in the namespace `here`."""
    selector = {"matchLabels": {"app": app}} if app else {}
    return {
        "kind": "NetworkPolicy",
        "metadata": {"name": app, "namespace": "here"},
        "spec": {"podSelector": selector, **spec},
    }


def ingress(*peers: dict[str, Any], ports: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return a policy that allows connections of peers to the API."""
    rule: dict[str, Any] = {"from": list(peers)} if peers else {}
    return policy("api", ingress=[{**rule, **({"ports": ports} if ports else {})}])


@pytest.mark.parametrize(
    ("policies", "source", "target", "port", "protocol", "expected"),
    [
        ([], JOB, API, 1, "TCP", True),
        ([policy("")], JOB, API, 1, "TCP", False),
        ([policy("")], API, FAR, 1, "TCP", True),  # only the direction Ingress is restricted
        ([policy("", policyTypes=["Egress"])], FAR, API, 1, "TCP", True),
        ([policy("", policyTypes=["Egress"])], API, FAR, 1, "TCP", False),
        ([policy("job", egress=[TO_JOBS])], JOB, API, 1, "TCP", True),  # no `to`: any target
        ([policy("job", egress=[{"to": [TO_JOBS]}])], JOB, API, 1, "TCP", False),
        ([policy("api")], API, JOB, 1, "TCP", True),
        ([ingress()], WORLD, API, 1, "TCP", True),
        ([ingress(TO_JOBS)], JOB, API, 1, "TCP", True),
        ([ingress(TO_JOBS)], FAR, API, 1, "TCP", False),  # a podSelector alone means pods of its namespace
        ([ingress(TO_JOBS)], WORLD, API, 1, "TCP", False),
        ([ingress(THERE)], FAR, API, 1, "TCP", True),
        ([ingress({**THERE, "podSelector": {"matchLabels": {"app": "x"}}})], FAR, API, 1, "TCP", False),
        ([ingress({"namespaceSelector": {}})], FAR, API, 1, "TCP", True),
        ([ingress({"namespaceSelector": {}})], WORLD, API, 1, "TCP", False),
        ([ingress(TO_JOBS, ports=[{"port": 5}])], JOB, API, 5, "TCP", True),
        ([ingress(TO_JOBS, ports=[{"port": 5}])], JOB, API, 6, "TCP", False),
        ([ingress(TO_JOBS, ports=[{"port": 5}])], JOB, API, 5, "UDP", False),
        ([ingress(TO_JOBS, ports=[{"protocol": "UDP"}])], JOB, API, 5, "UDP", True),
        ([ingress(TO_JOBS, ports=[{"port": 5, "endPort": 9}])], JOB, API, 9, "TCP", True),
        ([ingress(TO_JOBS, ports=[{"port": 5, "endPort": 9}])], JOB, API, 10, "TCP", False),
        ([ingress(TO_JOBS, ports=[{"port": "grpc"}])], JOB, API, 50051, "TCP", True),
        ([ingress(TO_JOBS, ports=[{"port": "grpc"}])], JOB, API, 50052, "TCP", False),
        ([ingress({"ipBlock": {"cidr": "93.0.0.0/8"}})], WORLD, API, 1, "TCP", True),
        ([ingress({"ipBlock": WORLD_LESS})], WORLD, API, 1, "TCP", False),
        ([policy(""), ingress(TO_JOBS)], JOB, API, 1, "TCP", True),  # policies are additive
        ([ingress(TO_JOBS), policy("job", policyTypes=["Egress"])], JOB, API, 1, "TCP", False),  # both
    ],
)  # fmt: skip
def test_a_connection_is_allowed_as_in_the_documentation_of_kubernetes(
    policies: list[dict[str, Any]], source: Place, target: Place, port: int, protocol: str, expected: bool
) -> None:
    assert passes(policies, source, target, port=port, protocol=protocol) is expected


def test_reached_returns_every_allowed_edge() -> None:
    allowed = reached(
        [policy(""), ingress(TO_JOBS, ports=[{"port": 5}])], [API, JOB], [(5, "TCP"), (6, "TCP")]
    )
    assert allowed == {("job", "api", 5, "TCP")}
