"""The rendered console as a local process: its token, its read-only mount, and replay over mutual TLS."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chart.combinations import CONSOLE
from chart.kubelet.machine import Machine
from chart.kubelet.network import inside_network
from chart.manifests import COMPONENT_LABEL
from chart.release_small import FULLNAME, NAME, NAMESPACE, small_release, user_secrets
from chart.rendering import render
from chart.waiting import eventually
from console.runs import make_run

pytestmark = pytest.mark.chart
TOKEN = "0123456789abcdef0123456789abcdef"
START_SECONDS, CALL_SECONDS = 120.0, 30.0
STARTED = ("console", "replay", "redis")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the machine."""
    directory: Path = tmp_path_factory.mktemp("machine") / "node"
    return directory


@pytest.fixture(scope="module")
def machine(node: Path) -> Iterator[Machine]:
    """Start the console with replay and Redis, without a learner."""
    documents = render(small_release(console={**CONSOLE, "besideLearner": True}, replay={"replicas": 1}))
    labels = [(d, d["metadata"]["labels"].get(COMPONENT_LABEL)) for d in documents]
    with Machine(node, namespace=NAMESPACE) as made:
        secrets = {**user_secrets(node.parent / "certs"), "console-token": {"token": TOKEN.encode() + b"\n"}}
        for name, data in secrets.items():
            made.add_secret(name, data)
        made.apply([d for d, component in labels if component in STARTED or d["kind"] == "ConfigMap"])
        made.wait_until_ready(seconds=START_SECONDS)
        yield made


def get(
    machine: Machine,
    path: str,
    token: str = TOKEN,
    host: str = "localhost:8080",
    body: str | None = None,
) -> tuple[int, Any]:
    """Return status and JSON (or text) of a GET at the console, or of a POST with a body."""
    (pod,) = machine.of_component("console")
    with inside_network(machine.network.node):
        connection = http.client.HTTPConnection(pod.facts.pod_ip, 8080, timeout=CALL_SECONDS)
        headers = {"host": host, "authorization": f"Bearer {token}", "x-slipstream": "test"}
        headers |= {"content-type": "application/json"} if body else {}
        connection.request("POST" if body else "GET", path, body, headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
    try:
        return response.status, json.loads(text)
    except ValueError:
        return response.status, text


def test_the_console_is_ready_before_the_run_has_a_directory(machine: Machine) -> None:
    status, runs = get(machine, "/api/runs")
    assert (status, runs["first"], runs["runs"], runs["read_only"]) == (200, NAME, [], True)


def test_only_a_visitor_with_the_token_reads_a_run(machine: Machine) -> None:
    assert get(machine, "/api/runs", token="another")[0] == 401
    assert get(machine, "/api/runs", host="evil.example")[0] == 421


def test_a_run_that_begins_is_shown_with_its_rows_and_the_state_of_replay(
    machine: Machine, node: Path
) -> None:
    make_run(node / "claims" / f"{FULLNAME}-checkpoints" / "runs" / NAME)
    status, run = get(machine, "/api/run")
    assert (status, run["step"]) == (200, 5)
    eventually(lambda: get(machine, "/api/run")[1]["live"] is not None, "answer of replay")
    assert get(machine, "/api/run")[1]["live"]["ledger"]["residual"] == 0


def test_stored_completions_are_read_and_compared_in_a_pod_that_can_write_to_tmp_alone(
    machine: Machine, node: Path
) -> None:
    make_run(node / "claims" / f"{FULLNAME}-checkpoints" / "runs" / "stored")
    status, samples = get(machine, "/api/samples?run=stored")
    assert (status, samples["total"] > 0) == (200, True)
    assert get(machine, "/api/lab", body='{"run": "stored", "step": 1}')[0] == 200
    eventually(lambda: get(machine, "/api/lab?run=stored&step=1")[1].get("done", True), "comparison")
    status, lab = get(machine, "/api/lab?run=stored&step=1")
    assert (status, bool(lab["report"])) == (200, True), lab
    (pod,) = machine.of_component("console")
    assert pod.restarts == 0, pod.log
