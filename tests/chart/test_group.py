"""A learner of two nodes as a LeaderWorkerSet, in local processes: its ranks train and end together."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from chart.kubelet.machine import Machine
from chart.kubelet.pod import Pod
from chart.metrics_page import gauge
from chart.release_small import FULLNAME, NAMESPACE, small_release, user_secrets
from chart.rendering import render
from chart.waiting import START_SECONDS, eventually

pytestmark = pytest.mark.chart
GROUP = {"nodes": 2, "workload": "LeaderWorkerSet", "checkpoints": {"accessModes": ["ReadWriteMany"]}}
FIRST, SECOND = f"{FULLNAME}-learner-0", f"{FULLNAME}-learner-0-1"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    directory: Path = tmp_path_factory.mktemp("machine")
    documents = render(small_release(learner=GROUP))
    with Machine(directory / "node", namespace=NAMESPACE) as made:
        for name, data in user_secrets(directory / "certs").items():
            made.add_secret(name, data)
        made.apply(documents)
        made.wait_until_ready(seconds=START_SECONDS)
        yield made


def test_the_ranks_of_both_pods_connect_and_train(machine: Machine) -> None:
    assert {pod.name for pod in machine.of_component("learner")} == {FIRST, SECOND}
    trains(machine, steps=5)
    assert {pod.restarts for pod in machine.of_component("learner")} == {0}
    assert gauge(machine, machine.pods[FIRST], "fleet_workers") == 2


def test_rollouts_join_only_at_the_first_pod(machine: Machine) -> None:
    own = machine.pods[FIRST].facts.pod_ip
    for name in (f"{FULLNAME}-learner", f"{FULLNAME}-learner-ranks"):
        assert [line.split()[0] for line in machine.names() if name in line.split()] == [own]


def test_a_group_whose_first_pod_is_stopped_resumes_at_its_step(machine: Machine) -> None:
    """LeaderWorkerSet stops the first pod of a group, and then the others."""
    trains(machine, steps=3)
    first, second = machine.pods[FIRST], machine.pods[SECOND]
    before = gauge(machine, first, "policy_version")
    machine.delete(FIRST, replace=False)
    assert first.exits == [0], first.log[-3000:]
    eventually(lambda: second.exits[:1] == [0] or second.restarts == 1, "a second pod that was let go")
    machine.delete(SECOND, replace=False)
    for name in (FIRST, SECOND):
        machine.recreate(name)
    machine.wait_until_ready(seconds=START_SECONDS)
    eventually(lambda: gauge(machine, first_pod(machine), "policy_version") >= before, "run that goes on")
    trains(machine, steps=3)


def first_pod(machine: Machine) -> Pod:
    return machine.pods[FIRST]


def trains(machine: Machine, *, steps: int) -> None:
    """Until so many more versions have been made."""
    start = gauge(machine, first_pod(machine), "policy_version")
    eventually(
        lambda: gauge(machine, first_pod(machine), "policy_version") >= start + steps, f"{steps} steps"
    )
