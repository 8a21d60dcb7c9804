"""What happens to a pod before it is up."""

import time
from pathlib import Path

import pytest
from chart.kubelet.machine import Machine
from chart.manifests import of_kind
from chart.release_small import FULLNAME, NAMESPACE, given_secrets, small_release
from chart.rendering import render

pytestmark = pytest.mark.chart
INITIAL_SECONDS, PROMPT_SECONDS = 300.0, 15.0


def test_a_learner_that_is_stopped_while_it_imports_ends_at_once(tmp_path: Path) -> None:
    """The first process of a container ignores a signal that it has no handler for: one must be there."""
    documents = render(small_release(learner={"stopSeconds": 60}))
    own = [d for d in documents if d["metadata"]["name"] == f"{FULLNAME}-learner"]
    maps = of_kind(documents, "ConfigMap")
    with Machine(tmp_path / "node", namespace=NAMESPACE) as machine:
        for name, data in given_secrets(tmp_path / "certs").items():
            machine.add_secret(name, data)
        machine.apply([*maps, *own])
        (learner,) = machine.of_component("learner")
        deadline = time.monotonic() + INITIAL_SECONDS
        while not learner.running:
            assert time.monotonic() < deadline, learner.log
            time.sleep(0.01)
        time.sleep(0.3)
        asked = time.monotonic()
        machine.delete(learner.name, replace=False)
        assert time.monotonic() - asked < PROMPT_SECONDS, learner.problem
        assert learner.exits in ([0], [143])
