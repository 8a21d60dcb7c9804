"""A pod that is stopped during its start ends at once."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chart.kubelet.machine import Machine
from chart.kubelet.pod import Pod
from chart.manifests import of_kind
from chart.release_small import FULLNAME, NAMESPACE, small_release, user_secrets
from chart.rendering import render

pytestmark = pytest.mark.chart
INITIAL_SECONDS, PROMPT_SECONDS = 300.0, 15.0


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Start a learner alone; the services that it waits for never start."""
    documents = render(small_release(learner={"stopSeconds": 60}))
    own = [d for d in documents if d["metadata"]["name"] == f"{FULLNAME}-learner"]
    with Machine(tmp_path / "node", namespace=NAMESPACE) as made:
        for name, data in user_secrets(tmp_path / "certs").items():
            made.add_secret(name, data)
        made.apply([*of_kind(documents, "ConfigMap"), *own])
        yield made


def test_a_learner_that_is_stopped_while_it_creates_the_model_ends_at_once(machine: Machine) -> None:
    (learner,) = machine.of_component("learner")
    until(lambda: "cold start" in learner.log, learner)
    assert stopped_in(machine, learner) < PROMPT_SECONDS, learner.problem


def test_a_learner_that_is_stopped_while_it_imports_ends_at_once(machine: Machine) -> None:
    """The kernel drops signals to a container's first process until Python has installed its handler."""
    (learner,) = machine.of_component("learner")
    until(lambda: bool(learner.running), learner)
    assert stopped_in(machine, learner) < PROMPT_SECONDS, learner.problem
    assert learner.exits in ([0], [143])


def until(condition: Callable[[], bool], pod: Pod) -> None:
    """Wait for a condition. Errors: AssertionError with the log of the pod."""
    deadline = time.monotonic() + INITIAL_SECONDS
    while not condition():
        assert time.monotonic() < deadline, pod.log
        time.sleep(0.05)


def stopped_in(machine: Machine, pod: Pod) -> float:
    """Stop the pod, and return the seconds until its end."""
    stopped_at = time.monotonic()
    machine.delete(pod.name, replace=False)
    return time.monotonic() - stopped_at
