"""A rendered release as local processes starts, trains, and survives restarts and deletions of pods."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from chart.connections import Connection, connections
from chart.kubelet.machine import Machine
from chart.kubelet.pod import Pod
from chart.manifests import Document
from chart.metrics_page import gauge
from chart.places import pods_of
from chart.reachability import Place, network_policies, passes
from chart.release_small import NAMESPACE, small_release, user_secrets
from chart.rendering import render
from chart.waiting import START_SECONDS, STEP_SECONDS, eventually

pytestmark = pytest.mark.chart


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return render(small_release())


@pytest.fixture(scope="module")
def machine(documents: list[Document], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    directory: Path = tmp_path_factory.mktemp("machine")
    with Machine(directory / "node", namespace=NAMESPACE) as made:
        for name, data in user_secrets(directory / "certs").items():
            made.add_secret(name, data)
        made.apply(documents)
        made.wait_until_ready(seconds=START_SECONDS)
        yield made


def test_the_release_trains(machine: Machine) -> None:
    trains(machine, steps=5)
    assert {pod.restarts for pod in machine.pods.values()} == {0}, restarts(machine)


def test_both_rollouts_are_in_the_fleet(machine: Machine) -> None:
    assert gauge(machine, learner(machine), "fleet_workers") == 2


def test_the_ledger_is_balanced(machine: Machine) -> None:
    for pod in machine.of_component("replay"):
        eventually(lambda pod=pod: gauge(machine, pod, "ledger_residual") == 0, "a ledger that closes")


def test_the_network_policies_allow_every_connection_of_a_running_release(
    machine: Machine, documents: list[Document]
) -> None:
    """The machine of the test enforces no policies, so its connections are compared with the allowed ones."""
    policies = network_policies(documents, namespace=NAMESPACE)
    places = {place.name: place for place in pods_of(documents, namespace=NAMESPACE)}
    seen = seen_connections(machine, seconds=10)
    stopped = [c for c in seen if not passes(policies, places[c.source], other(places, c), port=c.port)]
    assert stopped == []
    assert {(c.source, c.target) for c in seen} >= {
        ("actor", "replay"),
        ("actor", "rollout"),
        ("actor", "verifier"),
        ("rollout", "replay"),
        ("learner", "replay"),
        ("rollout", "learner"),
        ("replay", "redis"),
    }


def test_helm_test_succeeds(machine: Machine, documents: list[Document]) -> None:
    pods = machine.run_hooks(documents, event="test", seconds=START_SECONDS)
    assert pods
    assert {name: (pod.exits, pod.problem, pod.log) for name, pod in pods.items() if pod.exits != [0]} == {}


def test_a_stopped_rollout_drains_and_exits_with_0(machine: Machine) -> None:
    trains(machine, steps=1)
    worker = machine.of_component("rollout")[0]
    machine.delete(worker.name, replace=True)
    assert worker.exits == [0], worker.log[-3000:]
    machine.wait_until_ready(seconds=START_SECONDS)
    trains(machine, steps=5)


def test_a_stopped_actor_drains_and_exits_with_0(machine: Machine) -> None:
    actor = machine.of_component("actor")[0]
    machine.delete(actor.name, replace=True)
    assert actor.exits == [0], actor.log[-3000:]
    machine.wait_until_ready(seconds=START_SECONDS)
    trains(machine, steps=5)
    test_the_ledger_is_balanced(machine)


def test_a_rollout_is_ready_only_with_a_verified_version(machine: Machine) -> None:
    """A new rollout runs without being ready until the learner is there and has sent its weights."""
    other = learner(machine)
    machine.delete(other.name, replace=False)
    assert other.exits == [0], other.log[-3000:]
    before = {pod.name for pod in machine.of_component("rollout")}
    machine.delete(sorted(before)[0], replace=True)
    (new,) = [pod for pod in machine.of_component("rollout") if pod.name not in before]
    eventually(lambda: bool(new.running) and new.running[0].up, "a worker that is up")
    time.sleep(3)
    assert not new.ready
    assert machine.get(new, "/livez")[0] == 200
    machine.recreate(other.name)
    machine.wait_until_ready(seconds=START_SECONDS)
    assert "serv" in new.log
    trains(machine, steps=5)


def test_a_killed_learner_is_restarted_and_nothing_else_is(machine: Machine) -> None:
    trains(machine, steps=30)  # so that there is a checkpoint
    before = restarts(machine)
    pod = learner(machine)
    version = gauge(machine, pod, "policy_version")
    pod.kill()
    eventually(lambda: pod.restarts == before[pod.name] + 1, "a learner that is started again")
    machine.wait_until_ready(seconds=START_SECONDS)
    eventually(lambda: gauge(machine, pod, "policy_version") > version, "a run that goes on")
    assert restarts(machine) == {**before, pod.name: before[pod.name] + 1}
    test_the_ledger_is_balanced(machine)


def test_a_killed_redis_is_restarted_with_the_ledger(machine: Machine) -> None:
    (redis,) = machine.of_component("redis")
    before = restarts(machine)
    redis.kill()
    eventually(lambda: redis.restarts == before[redis.name] + 1, "a Redis that is started again")
    machine.wait_until_ready(seconds=START_SECONDS)
    trains(machine, steps=5)
    assert restarts(machine) == {**before, redis.name: before[redis.name] + 1}
    test_the_ledger_is_balanced(machine)


def test_every_pod_exits_with_0_when_pods_are_stopped_in_order_of_their_dependencies(
    machine: Machine,
) -> None:
    for component in ("actor", "rollout", "learner", "verifier", "replay", "redis"):
        pods = machine.of_component(component)
        for pod in pods:
            pod.stop()
        for pod in pods:
            assert pod.wait(STEP_SECONDS), pod.name
            assert (pod.exits[-1], pod.problem) == (0, ""), pod.log[-3000:]


def seen_connections(machine: Machine, *, seconds: float) -> set[Connection]:
    """Return the connections during `seconds`."""
    seen: set[Connection] = set()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        seen |= connections(machine)
    return seen


def other(places: Mapping[str, Place], connection: Connection) -> Place:
    """Return the target of a connection; a different pod, if both ends are of one component."""
    target = connection.target
    return places[f"other {target}" if connection.source == target else target]


def learner(machine: Machine) -> Pod:
    """Return the learner."""
    (pod,) = machine.of_component("learner")
    return pod


def trains(machine: Machine, *, steps: int) -> None:
    """Wait until the learner has published `steps` more versions."""
    start = gauge(machine, learner(machine), "policy_version")
    eventually(lambda: gauge(machine, learner(machine), "policy_version") >= start + steps, f"{steps} steps")


def restarts(machine: Machine) -> dict[str, int]:
    """Return the number of restarts of each pod's containers."""
    return {pod.name: pod.restarts for pod in machine.pods.values()}
