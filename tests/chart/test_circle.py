"""What the chart renders, as local processes: it starts, trains, and survives what a cluster does."""

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
from chart.release_small import NAMESPACE, given_secrets, small_release
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
        for name, data in given_secrets(directory / "certs").items():
            made.add_secret(name, data)
        made.apply(documents)
        made.wait_until_ready(seconds=START_SECONDS)
        yield made


def test_the_circle_trains(machine: Machine) -> None:
    trains(machine, steps=5)
    assert {pod.restarts for pod in machine.pods.values()} == {0}, restarts(machine)


def test_both_workers_are_in_the_fleet(machine: Machine) -> None:
    assert gauge(machine, learner(machine), "fleet_workers") == 2


def test_the_ledger_closes(machine: Machine) -> None:
    for pod in machine.of_component("replay"):
        eventually(lambda pod=pod: gauge(machine, pod, "ledger_residual") == 0, "a ledger that closes")


def test_every_connection_of_a_live_circle_is_let_through(
    machine: Machine, documents: list[Document]
) -> None:
    """There are no policies on the test's machine: what is connected here must be what they allow."""
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


def test_a_stopped_worker_drains_and_ends_with_0(machine: Machine) -> None:
    trains(machine, steps=1)
    worker = machine.of_component("rollout")[0]
    machine.delete(worker.name, replace=True)
    assert worker.exits == [0], worker.log[-3000:]
    machine.wait_until_ready(seconds=START_SECONDS)
    trains(machine, steps=5)


def test_a_stopped_actor_drains_and_ends_with_0(machine: Machine) -> None:
    actor = machine.of_component("actor")[0]
    machine.delete(actor.name, replace=True)
    assert actor.exits == [0], actor.log[-3000:]
    machine.wait_until_ready(seconds=START_SECONDS)
    trains(machine, steps=5)
    test_the_ledger_closes(machine)


def test_a_worker_is_ready_only_with_a_verified_version(machine: Machine) -> None:
    """Without a learner a new worker is up and stays unready; with one it gets its weights and then is."""
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


def test_a_killed_learner_comes_back_and_nothing_else_restarts(machine: Machine) -> None:
    trains(machine, steps=30)  # past a checkpoint
    before = restarts(machine)
    pod = learner(machine)
    version = gauge(machine, pod, "policy_version")
    pod.kill()
    eventually(lambda: pod.restarts == before[pod.name] + 1, "a learner that is started again")
    machine.wait_until_ready(seconds=START_SECONDS)
    eventually(lambda: gauge(machine, pod, "policy_version") > version, "a run that goes on")
    assert restarts(machine) == {**before, pod.name: before[pod.name] + 1}
    test_the_ledger_closes(machine)


def test_a_killed_redis_comes_back_with_the_ledger(machine: Machine) -> None:
    (redis,) = machine.of_component("redis")
    before = restarts(machine)
    redis.kill()
    eventually(lambda: redis.restarts == before[redis.name] + 1, "a Redis that is started again")
    machine.wait_until_ready(seconds=START_SECONDS)
    trains(machine, steps=5)
    assert restarts(machine) == {**before, redis.name: before[redis.name] + 1}
    test_the_ledger_closes(machine)


def test_every_pod_ends_with_0_when_those_go_first_that_need_the_others(machine: Machine) -> None:
    for component in ("actor", "rollout", "learner", "verifier", "replay", "redis"):
        pods = machine.of_component(component)
        for pod in pods:
            pod.stop()
        for pod in pods:
            assert pod.wait(STEP_SECONDS), pod.name
            assert (pod.exits[-1], pod.problem) == (0, ""), pod.log[-3000:]


def seen_connections(machine: Machine, *, seconds: float) -> set[Connection]:
    """The connections of that time."""
    seen: set[Connection] = set()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        seen |= connections(machine)
    return seen


def other(places: Mapping[str, Place], connection: Connection) -> Place:
    """The place that is connected to; not the same pod, where both are of one room."""
    target = connection.target
    return places[f"other {target}" if connection.source == target else target]


def learner(machine: Machine) -> Pod:
    """The one learner."""
    (pod,) = machine.of_component("learner")
    return pod


def trains(machine: Machine, *, steps: int) -> None:
    """Until so many more versions have been made."""
    start = gauge(machine, learner(machine), "policy_version")
    eventually(lambda: gauge(machine, learner(machine), "policy_version") >= start + steps, f"{steps} steps")


def restarts(machine: Machine) -> dict[str, int]:
    """How often each pod's containers were started again."""
    return {pod.name: pod.restarts for pod in machine.pods.values()}
