"""The NetworkPolicies of a release allow exactly the intended connections."""

from dataclasses import replace
from typing import Any

import pytest
import yaml
from chart.broken import broken
from chart.combinations import CONSOLE
from chart.manifests import by_name, pod_templates
from chart.places import AROUND, pods_of
from chart.reachability import Edge, Place, network_policies, reached
from chart.release_small import NAMESPACE, RUN, small_release
from chart.rendering import Document, merge, render
from render import Release

TCP = "TCP"
SERVED = {
    "replay": 50051,
    "verifier": 50052,
    "learner": 50053,
    "rollout": 50054,
    "teacher": 50055,
    "console": 8080,
    "redis": 6379,
}
METRICS, WEIGHTS, RANKS, ENGINE, ANY = 9464, 29500, 29400, 29600, 45678
"""RANKS: torchrun's store; ENGINE: the nodes of an engine; ANY: an example of an ephemeral port."""
FREE_FROM, FREE_TO = 32768, 60999
"""The range of ephemeral ports of the kernel."""
ENDS_OF_FREE = (FREE_FROM - 1, FREE_FROM, FREE_TO, FREE_TO + 1)
NUMBERS = (*SERVED.values(), METRICS, WEIGHTS, RANKS, ENGINE, ANY, *ENDS_OF_FREE, 53, 5353, 443)
PORTS = [*((port, TCP) for port in NUMBERS), (53, "UDP"), (5353, "UDP")]
ALL_TCP = [port for port, protocol in PORTS if protocol == TCP]
FREE = [port for port in NUMBERS if FREE_FROM <= port <= FREE_TO]
LEARNERS, ROLLOUTS = ("learner", "other learner"), ("rollout", "other rollout")
COMPUTING = (*LEARNERS, *ROLLOUTS)

EDGES: set[Edge] = {
    # actors lease and insert at replay, the learner fetches batches there
    ("actor", "replay", 50051, TCP),
    # heartbeats of rollouts
    ("rollout", "replay", 50051, TCP),
    ("other rollout", "replay", 50051, TCP),
    ("learner", "replay", 50051, TCP),
    ("other learner", "replay", 50051, TCP),
    # actors call rollouts to sample
    *(("actor", name, 50054, TCP) for name in ROLLOUTS),
    # actors call the verifier to score
    ("actor", "verifier", 50052, TCP),
    # only replay connects to Redis
    ("replay", "redis", 6379, TCP),
    # the ranks of the learner
    *((a, b, port, TCP) for a in LEARNERS for b in LEARNERS if a != b for port in ALL_TCP),
    # rollouts join the fleet and the rendezvous of the weights, and receive weights
    *((a, b, port, TCP) for a in ROLLOUTS for b in LEARNERS for port in (50053, WEIGHTS, *FREE)),
    *((a, b, port, TCP) for a in LEARNERS for b in ROLLOUTS for port in FREE),
    *((a, b, port, TCP) for a in ROLLOUTS for b in ROLLOUTS if a != b for port in FREE),
    # `helm test`
    ("test", "replay", 50051, TCP),
    ("test", "verifier", 50052, TCP),
    ("test", "learner", 50053, TCP),
    ("test", "other learner", 50053, TCP),
    # DNS, for every pod that calls another
    *(
        (name, "dns", 53, protocol)
        for name in (*COMPUTING, "actor", "replay", "test")
        for protocol in (TCP, "UDP")
    ),
    # Prometheus scrapes every pod with a metrics page
    *(("prometheus", name, METRICS, TCP) for name in (*COMPUTING, "actor", "replay", "verifier")),
}  # fmt: skip
OPEN_TO_ALL = {
    (a.name, b.name, port, protocol) for a in AROUND for b in AROUND for port, protocol in PORTS if a != b
}


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return render(small_release())


def edges(release: Release, documents: list[Document]) -> set[Edge]:
    """Return the edges of the pods of a release, without the edges between other ends."""
    places = [*pods_of(documents, namespace=release.namespace), *AROUND]
    policies = network_policies(documents, namespace=release.namespace)
    return reached(policies, places, PORTS) - OPEN_TO_ALL


def test_the_policies_allow_exactly_the_intended_edges(documents: list[Document]) -> None:
    allowed = edges(small_release(), documents)
    assert allowed - EDGES == set(), "these are open and should not be"
    assert EDGES - allowed == set(), "these are closed and should not be"


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


@pytest.mark.parametrize("tested", [True, False], ids=["tested", "untested"])
def test_only_the_learner_and_the_tests_reach_a_teacher_and_it_reaches_nothing(tested: bool) -> None:
    run = yaml.safe_load(RUN)
    run |= {"algorithm": {"distillation": {}}, "teacher": {"path": "/models/teacher"}}
    release = small_release(
        run={"config": yaml.safe_dump(run)},
        teacher={"models": {"existingClaim": "teacher"}},
        tests={"enabled": tested},
    )
    allowed = {edge for edge in edges(release, render(release)) if "teacher" in edge[:2]}
    assert allowed == {
        *([("test", "teacher", 50055, TCP)] if tested else ()),
        ("learner", "teacher", 50055, TCP),
        ("other learner", "teacher", 50055, TCP),
        ("prometheus", "teacher", METRICS, TCP),
    }


CONSOLE_EDGES: set[Edge] = {
    ("console", "replay", 50051, TCP),
    *(("console", name, 50053, TCP) for name in LEARNERS),
    *(("console", "dns", 53, protocol) for protocol in (TCP, "UDP")),
}


@pytest.mark.parametrize("peers", [[], ["stranger"]], ids=["port-forward", "peers"])
def test_a_console_reaches_replay_and_the_learner_alone_and_only_its_peers_reach_it(peers: list[str]) -> None:
    selected = [{"podSelector": {"matchLabels": {"app": "other"}}} for _ in peers]
    release = small_release(console={**CONSOLE, "besideLearner": True, "peers": selected})
    allowed = edges(release, render(release))
    assert allowed - EDGES == CONSOLE_EDGES | {(peer, "console", 8080, TCP) for peer in peers}
    assert EDGES - allowed == set()


@pytest.mark.parametrize("nodes", [1, 2])
def test_no_rollout_reaches_the_store_of_torchrun(nodes: int) -> None:
    """The store unpickles its input, and authenticates no client."""
    learner = {"nodes": nodes, "ranksPerNode": 2, "checkpoints": {"accessModes": ["ReadWriteMany"]}}
    release = small_release(learner=learner)
    documents = render(release)
    (pod,) = [pod for pod in pod_templates(documents) if pod.component == "learner"]
    assert f"--master-port={RANKS}" in pod.containers[0]["args"]
    to_store = {edge for edge in edges(release, documents) if edge[1] in LEARNERS and edge[2] == RANKS}
    assert {edge[0] for edge in to_store} == set(LEARNERS)


def test_without_a_range_of_ports_learner_and_rollouts_reach_each_other_at_all_ports() -> None:
    """A network plugin without endPort takes a range for its first port."""
    release = small_release(network={"ephemeralPorts": ""})
    allowed = edges(release, render(release))
    assert allowed - EDGES == {
        (a, b, port, TCP)
        for a in COMPUTING
        for b in COMPUTING
        for port in ALL_TCP
        if a != b and (a, b, port, TCP) not in EDGES
    }


def test_nodes_of_one_engine_reach_each_other_at_all_ports_and_not_the_learner() -> None:
    values = {
        "run": {"config": RUN.replace("engine: emulated", "tensor_parallel: 2")},
        "rollout": {"defaults": {"nodes": 2, "gpu": {"count": 1}}},
        "learner": {"gpu": {"count": 1}},
    }
    release = small_release(**values)
    allowed = edges(release, render(release))
    assert allowed - EDGES == {
        (a, b, port, TCP)
        for a in ROLLOUTS
        for b in ROLLOUTS
        for port in ALL_TCP
        if a != b and port not in FREE
    }


def test_dns_is_reached_at_the_configured_ports() -> None:
    release = small_release(network={"dns": {"ports": [5353]}})
    allowed = edges(release, render(release))
    dns_ports = {(port, protocol) for _, target, port, protocol in allowed if target == "dns"}
    assert dns_ports == {(5353, TCP), (5353, "UDP")}


PROXY = Place(name="proxy", address="10.9.0.9")
WORLD6, PRIVATE6 = Place(name="world6", address="2001:db8::1"), Place(name="private6", address="fd00::1")


@pytest.mark.parametrize(
    ("download", "egress", "reached_at"),
    [
        ({}, {}, {("world", 443), ("world6", 443)}),
        ({"endpoint": "https://hub.example:8443/x"}, {}, {("world", 8443), ("world6", 8443)}),
        (
            {"endpoint": "https://hub.example:8443", "proxy": "http://proxy:3128"},
            {"peers": [{"ipBlock": {"cidr": "10.9.0.9/32"}}]},
            {("proxy", 3128)},
        ),
        (
            {"endpoint": "http://[fd00::1]"},
            {"peers": [{"ipBlock": {"cidr": "fd00::1/128"}}]},
            {("private6", 80)},
        ),
    ],
    ids=["hub", "mirror", "proxy", "address"],
)  # fmt: skip
def test_the_download_of_the_model_reaches_only_its_source(
    download: dict[str, Any], egress: dict[str, Any], reached_at: set[tuple[str, int]]
) -> None:
    source = {"repository": "example/policy", "revision": "4f2c9d1", **download}
    release = small_release(
        run={"config": RUN.replace("model: {tiny", "#").replace("warmup:", "#")},
        model={"mode": "download", "download": source},
        network={"egress": {"huggingface": True, **egress}},
    )
    documents = render(release)
    outside = [PROXY, WORLD6, PRIVATE6, *AROUND]
    places = [*pods_of(documents, namespace=NAMESPACE), *outside]
    policies = network_policies(documents, namespace=NAMESPACE)
    allowed = reached(policies, places, [(port, TCP) for port in (80, 443, 3128, 8443)])
    names = {place.name for place in outside}
    for component in ("learner", "rollout", "actor"):
        assert {(b, port) for a, b, port, _ in allowed if a == component and b in names} == reached_at
    assert not {edge for edge in allowed if edge[0] in ("replay", "verifier") and edge[1] in names}


def test_without_tests_no_pod_has_their_edges() -> None:
    release = small_release(tests={"enabled": False})
    allowed = edges(release, render(release))
    assert allowed == {edge for edge in EDGES if "test" not in edge[:2]}


def test_only_replay_reaches_an_external_redis() -> None:
    redis = {
        "mode": "external",
        "external": {"host": "redis.example.org", "existingSecret": "redis-password"},
    }
    allowed = edges(small_release(redis=redis), render(small_release(redis=redis)))
    extra = {edge for edge in allowed - EDGES if edge[1] != "redis"}
    assert {edge[0] for edge in extra} == {"replay"}
    assert {edge[2] for edge in extra} == {6379}


def test_scores_over_http_and_judges_add_only_their_own_edges() -> None:
    run = yaml.safe_load(RUN)
    run["rewards"] = [{"name": "judge", "url": "https://judge.example/v1", "model": "m"}]
    verifier = {
        "http": {"enabled": True, "port": ANY, "peers": [{"podSelector": {"matchLabels": {"app": "other"}}}]},
        "judge": {"peers": [{"ipBlock": {"cidr": "93.184.216.0/24"}}]},
    }
    release = small_release(run={"config": yaml.safe_dump(run)}, verifier=verifier)
    allowed = edges(release, render(release))
    assert allowed - EDGES == {
        ("stranger", "verifier", ANY, TCP),
        ("verifier", "world", 443, TCP),
        ("verifier", "dns", 53, TCP),
        ("verifier", "dns", 53, "UDP"),
    }
    assert EDGES - allowed == set()


@pytest.mark.parametrize(
    ("values", "component"),
    [
        ({"learner": {"hostNetwork": True}}, "learner"),
        ({"rollout": {"pools": [{"name": "a"}, {"name": "b", "hostNetwork": True}]}}, "rollout"),
        ({"actor": {"hostNetwork": True}}, "actor"),
        ({"replay": {"hostNetwork": True}}, "replay"),
        ({"redis": {"hostNetwork": True}}, "redis"),
    ],
    ids=str,
)  # fmt: skip
def test_the_node_of_pods_with_its_network_has_the_edges_of_these_pods(
    values: dict[str, Any], component: str
) -> None:
    """The policies of other pods see such a pod as the address of its node, without labels."""
    release = small_release(**values, network={"nodeCIDRs": ["93.184.216.34/32"]})
    node = "world"
    allowed = edges(release, render(release))
    opened = {edge for edge in allowed if node in edge[:2]}
    own_names = {name for name in COMPUTING if name.endswith(component)} or {component}
    expected = {
        (node if source in own_names else source, node if target in own_names else target, port, protocol)
        for source, target, port, protocol in EDGES
        if (source in own_names) != (target in own_names)
        and "dns" not in (source, target)
        and source != "prometheus"
    }
    if component in ("learner", "rollout"):  # pods of these components also call each other
        among = ALL_TCP if component == "learner" else FREE
        expected |= {(node, name, port, TCP) for name in own_names for port in among}
        expected |= {(name, node, port, TCP) for name in own_names for port in among}
    assert opened == expected
    assert {edge for edge in allowed if node not in edge[:2]} == EDGES


@pytest.mark.parametrize(
    "component",
    ["learner", "rollout", "actor", "verifier", "teacher", "replay", "console", "redis", "tests"],
)
def test_rules_of_the_user_are_added_only_to_the_policy_of_their_component(component: str) -> None:
    ports = [{"protocol": "UDP", "port": 4317}]
    into = {"ports": ports, "from": [{"podSelector": {"matchLabels": {"app": "other"}}}]}
    out = {"ports": ports, "to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}
    run = yaml.safe_load(RUN)
    run |= {"algorithm": {"distillation": {}}, "teacher": {"path": "/models/teacher"}}
    base = small_release(
        run={"config": yaml.safe_dump(run)},
        teacher={"models": {"existingClaim": "a"}},
        console={**CONSOLE, "besideLearner": True},
    )
    rules = {component: {"networkPolicy": {"extraIngress": [into], "extraEgress": [out]}}}
    before = by_name(render(base), "NetworkPolicy")
    after = by_name(render(replace(base, values=merge(base.values, rules))), "NetworkPolicy")
    (changed,) = [name for name in before if before[name] != after[name]]
    assert changed == f"demo-slipstream-{'test' if component == 'tests' else component}"
    for way, rule in (("ingress", into), ("egress", out)):
        assert after[changed]["spec"][way] == [*before[changed]["spec"].get(way, []), rule]


def test_peers_of_the_user_replace_the_default_peers() -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}}]
    release = small_release(network={"prometheus": {"peers": peers}})
    allowed = edges(release, render(release))
    scraped = {edge[0] for edge in allowed if edge[2] == METRICS and edge[0] not in COMPUTING}
    assert scraped == {"elsewhere"}


def test_a_missing_policy_allows_more_edges(documents: list[Document]) -> None:
    without = [d for d in documents if d["metadata"]["name"] != "demo-slipstream-deny"]
    assert edges(small_release(), without) == edges(
        small_release(), documents
    )  # the policies of both ends restrict an edge
    opened = broken(without, "NetworkPolicy/demo-slipstream-verifier", "spec.policyTypes", ["Ingress"])
    assert ("verifier", "world", 443, TCP) in edges(small_release(), opened)
