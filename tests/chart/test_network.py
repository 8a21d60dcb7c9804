"""The NetworkPolicies of a release let through exactly the edges of the design."""

from dataclasses import replace

import pytest
import yaml
from chart.broken import broken
from chart.places import AROUND, pods_of
from chart.reachability import Edge, network_policies, reached
from chart.release_small import NAMESPACE, RUN, small_release
from chart.rendering import Document, render
from render import Release

TCP = "TCP"
SERVED = {
    "replay": 50051,
    "verifier": 50052,
    "learner": 50053,
    "rollout": 50054,
    "teacher": 50055,
    "redis": 6379,
}
METRICS, WEIGHTS, RANKS, ENGINE, ANY = 9464, 29500, 29400, 29600, 45678
"""Nodes of one engine meet at ENGINE; only a rule for all ports lets ANY through, as NCCL and gloo need."""
NUMBERS = (*SERVED.values(), METRICS, WEIGHTS, RANKS, ENGINE, ANY, 53, 443)
PORTS = [*((port, TCP) for port in NUMBERS), (53, "UDP")]
ALL_TCP = [port for port, protocol in PORTS if protocol == TCP]
COMPUTING = ("learner", "other learner", "rollout", "other rollout")

EDGES: set[Edge] = {
    # lease, insert: rollout -> replay; sample, ack: learner -> replay; the console's place is taken by tests
    ("rollout", "replay", 50051, TCP),
    ("other rollout", "replay", 50051, TCP),
    ("learner", "replay", 50051, TCP),
    ("other learner", "replay", 50051, TCP),
    # score
    ("rollout", "verifier", 50052, TCP),
    ("other rollout", "verifier", 50052, TCP),
    # only replay connects to Redis
    ("replay", "redis", 6379, TCP),
    # the fleet's stream, the rendezvous and the weights; the ranks among each other
    *((a, b, port, TCP) for a in COMPUTING for b in COMPUTING if a != b for port in ALL_TCP),
    # `helm test`
    ("test", "replay", 50051, TCP),
    ("test", "verifier", 50052, TCP),
    ("test", "learner", 50053, TCP),
    ("test", "other learner", 50053, TCP),
    # names, for whoever calls somebody
    *(
        (name, "dns", 53, protocol)
        for name in (*COMPUTING, "replay", "test")
        for protocol in (TCP, "UDP")
    ),
    # Prometheus scrapes every pod that has a page
    *(("prometheus", name, METRICS, TCP) for name in (*COMPUTING, "replay", "verifier")),
}  # fmt: skip
OPEN_TO_ALL = {
    (a.name, b.name, port, protocol) for a in AROUND for b in AROUND for port, protocol in PORTS if a != b
}


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return render(small_release())


def edges(release: Release, documents: list[Document]) -> set[Edge]:
    """Every edge among the pods of a release and what is around it, without what is no business of ours."""
    places = [*pods_of(documents, namespace=release.namespace), *AROUND]
    policies = network_policies(documents, namespace=release.namespace)
    return reached(policies, places, PORTS) - OPEN_TO_ALL


def test_the_policies_are_exactly_the_edges_of_the_design(documents: list[Document]) -> None:
    found = edges(small_release(), documents)
    assert found - EDGES == set(), "these are open and should not be"
    assert EDGES - found == set(), "these are closed and should not be"


def test_another_release_reaches_nothing(documents: list[Document]) -> None:
    other = replace(small_release(), name="other")
    theirs = render(other)
    places = pods_of(documents, namespace=NAMESPACE)
    others = pods_of(theirs, namespace=NAMESPACE, prefix="other release's ")
    policies = network_policies([*documents, *theirs], namespace=NAMESPACE)
    between = {
        edge
        for edge in reached(policies, [*places, *others], PORTS)
        if edge[0].startswith("other release's") != edge[1].startswith("other release's")
    }
    assert between == set()


def test_a_teacher_is_called_by_the_learner_alone_and_calls_nobody() -> None:
    run = yaml.safe_load(RUN)
    run |= {"algorithm": {"distillation": {}}, "teacher": {"path": "/models/teacher"}}
    release = small_release(
        run={"config": yaml.safe_dump(run)}, teacher={"models": {"existingClaim": "teacher"}}
    )
    found = {edge for edge in edges(release, render(release)) if "teacher" in edge[:2]}
    assert found == {
        ("learner", "teacher", 50055, TCP),
        ("other learner", "teacher", 50055, TCP),
        ("prometheus", "teacher", METRICS, TCP),
    }


def test_without_tests_nobody_stands_in_for_them() -> None:
    release = small_release(tests={"enabled": False})
    found = edges(release, render(release))
    assert found == {edge for edge in EDGES if "test" not in edge[:2]}


def test_an_external_redis_is_reached_by_replay_alone() -> None:
    redis = {
        "mode": "external",
        "external": {"host": "redis.example.org", "existingSecret": "redis-password"},
    }
    found = edges(small_release(redis=redis), render(small_release(redis=redis)))
    extra = {edge for edge in found - EDGES if edge[1] != "redis"}
    assert {edge[0] for edge in extra} == {"replay"}
    assert {edge[2] for edge in extra} == {6379}


def test_scores_over_http_and_judges_open_just_their_own_edges() -> None:
    run = yaml.safe_load(RUN)
    run["rewards"] = [{"name": "judge", "url": "https://judge.example/v1", "model": "m"}]
    verifier = {
        "http": {"enabled": True, "port": ANY, "peers": [{"podSelector": {"matchLabels": {"app": "other"}}}]},
        "judge": {"peers": [{"ipBlock": {"cidr": "93.184.216.0/24"}}]},
    }
    release = small_release(run={"config": yaml.safe_dump(run)}, verifier=verifier)
    found = edges(release, render(release))
    assert found - EDGES == {
        ("stranger", "verifier", ANY, TCP),
        ("verifier", "world", 443, TCP),
        ("verifier", "dns", 53, TCP),
        ("verifier", "dns", 53, "UDP"),
    }
    assert EDGES - found == set()


def test_peers_that_the_user_names_replace_ours() -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}}]
    release = small_release(network={"prometheus": {"peers": peers}})
    found = edges(release, render(release))
    scraped = {edge[0] for edge in found if edge[2] == METRICS and edge[0] not in COMPUTING}
    assert scraped == {"elsewhere"}


def test_a_policy_that_is_missing_is_noticed(documents: list[Document]) -> None:
    without = [d for d in documents if d["metadata"]["name"] != "demo-slipstream-deny"]
    assert edges(small_release(), without) == edges(
        small_release(), documents
    )  # each room closes itself, too
    opened = broken(without, "NetworkPolicy/demo-slipstream-verifier", "spec.policyTypes", ["Ingress"])
    assert ("verifier", "world", 443, TCP) in edges(small_release(), opened)
