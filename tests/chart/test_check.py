"""The init container `check` of the learner's pod validates the run with the files of the pod."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chart.kubelet.machine import Machine
from chart.kubelet.pod import Pod
from chart.manifests import Document, of_kind, pod_templates
from chart.release_small import FULLNAME, NAMESPACE, RUN, small_release, user_secrets
from chart.rendering import render
from cli.test_validate import make_model

WAIT_SECONDS = 120.0
TOO_LONG = RUN.replace("max_new_tokens: 6", "max_new_tokens: 100")
FROM_FILE = RUN.replace(
    "data: {kind: addition, digits: 1}", "data: {kind: file, path: /data/train.jsonl}"
).replace(
    "model: {tiny: {layers: 2, width: 64, heads: 2, max_tokens: 64}}\nwarmup: {steps: 20, batch_size: 16}\n",
    "",
)
VOLUMES: dict[str, Any] = {
    "run": {"config": FROM_FILE},
    "model": {"mode": "volume", "volume": {"existingClaim": "models", "directory": "policy"}},
    "data": {"existingClaim": "prompts"},
}
ROW = {"prompt": "w1 w2", "answer": "w3"}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Machine(tmp_path / "node", namespace=NAMESPACE) as made:
        for name, data in user_secrets(tmp_path / "certs").items():
            made.add_secret(name, data)
        yield made


@pytest.fixture
def claims(tmp_path: Path) -> Path:
    """Write the content of the claims `models` and `prompts`, with one malformed row."""
    folder = tmp_path / "node" / "claims"
    (folder / "models").mkdir(parents=True)
    make_model(folder / "models" / "policy", max_position_embeddings=64)
    (folder / "prompts").mkdir()
    rows = [ROW, {"prompt": "w1 w2 w3"}]
    (folder / "prompts" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def of_learner(**values: Any) -> list[Document]:
    """Return the objects of a learner alone; the services that it waits for never start."""
    documents = render(small_release(**values))
    own = [d for d in documents if d["metadata"]["name"] == f"{FULLNAME}-learner"]
    return [*of_kind(documents, "ConfigMap"), *own]


def learner_until(machine: Machine, condition: Any) -> Pod:
    (learner,) = machine.of_component("learner")
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition(learner):
        assert time.monotonic() < deadline, (learner.problem, learner.log)
        time.sleep(0.1)
    return learner


@pytest.mark.chart
def test_a_run_that_cannot_work_fails_the_check_before_a_model_is_created(machine: Machine) -> None:
    machine.apply(of_learner(run={"config": TOO_LONG}))
    learner = learner_until(machine, lambda pod: pod.problem)
    assert learner.problem.startswith("initial container check: exit 2: slipstream: /etc/slipstream/run.yaml")
    assert "rollout.max_new_tokens: prompt " in learner.problem
    assert "more than the model's context of 64; lower it to " in learner.problem
    assert not learner.running
    assert "cold start" not in learner.log


@pytest.mark.chart
def test_in_a_group_the_failed_check_keeps_its_container_with_the_reason(machine: Machine) -> None:
    """If the container ended, LeaderWorkerSet would replace all pods of the group and their logs."""
    group = {"workload": "LeaderWorkerSet"}
    machine.apply(of_learner(run={"config": TOO_LONG}, learner=group))
    learner = learner_until(machine, lambda pod: "is run again in 60 seconds" in pod.log)
    assert "more than the model's context of 64; lower it to " in learner.log
    assert (learner.problem, learner.restarts, learner.running) == ("", 0, [])
    learner.stop()
    assert learner.wait(10.0), "SIGTERM does not end it"


@pytest.mark.chart
def test_a_malformed_row_of_the_claim_fails_the_check(machine: Machine, claims: Path) -> None:
    machine.apply(of_learner(**VOLUMES))
    learner = learner_until(machine, lambda pod: pod.problem)
    assert "data: /data/train.jsonl" in learner.problem
    assert "ground truth is needed" in learner.problem
    assert not learner.running


@pytest.mark.chart
def test_a_run_that_passes_the_check_starts_the_learner(machine: Machine, claims: Path) -> None:
    (claims / "prompts" / "train.jsonl").write_text(
        "".join(json.dumps({**ROW, "prompt": f"w{i} w1"}) + "\n" for i in range(40))
    )
    machine.apply(of_learner(**VOLUMES))
    learner = learner_until(machine, lambda pod: pod.running)
    assert "/etc/slipstream/run.yaml with /etc/slipstream/values.yaml is valid" in learner.log
    assert "was not looked at" not in learner.log


def check_of(documents: list[Document]) -> Document:
    """Return the init container `check`."""
    initial = [c for pod in pod_templates(documents) for c in pod.spec.get("initContainers") or []]
    (check,) = [container for container in initial if container["name"] == "check"]
    return check


def with_data(claim: str, path: str) -> dict[str, Any]:
    """Return values with the prompts in another claim, at another path."""
    data = {"existingClaim": claim, "mountPath": path}
    return {**VOLUMES, "data": data, "run": {"config": FROM_FILE.replace("/data", path)}}


def initial_names(**values: Any) -> list[str]:
    (pod,) = [pod for pod in pod_templates(render(small_release(**values))) if pod.component == "learner"]
    return [container["name"] for container in pod.spec.get("initContainers") or []]


def test_the_check_runs_before_a_model_is_created_and_after_one_is_downloaded() -> None:
    download = {"mode": "download", "download": {"repository": "example/policy", "revision": "4f2c9d1"}}
    downloaded = {"run": VOLUMES["run"], "data": VOLUMES["data"]}
    egress = {"egress": {"huggingface": True}}
    assert initial_names() == ["check", "model"]
    assert initial_names(**downloaded, model=download, network=egress) == ["model", "check"]
    assert initial_names(**VOLUMES) == ["check"]
    assert initial_names(**VOLUMES, learner={"check": {"enabled": False}}) == []


def test_the_check_has_the_mounts_of_model_and_prompts() -> None:
    check = check_of(render(small_release(**with_data("prompts", "/prompts"))))
    mounts = {mount["mountPath"]: mount["name"] for mount in check["volumeMounts"]}
    assert mounts["/models"] == "models"
    assert mounts["/prompts"] == "data"
    assert check["args"] == [
        "--values=/etc/slipstream/values.yaml",
        "--models=/models",
        "--installed",
        "--data=/prompts",
    ]
    assert check["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_prompts_in_the_volume_of_the_model_are_mounted_once() -> None:
    check = check_of(render(small_release(**with_data("models", "/models"))))
    assert [mount["name"] for mount in check["volumeMounts"] if mount["mountPath"] == "/models"] == ["models"]


def test_the_values_of_the_check_have_no_variables_and_no_objects_of_the_user() -> None:
    private = {"extraEnv": [{"name": "TOKEN", "value": "hidden-1"}]}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s"},
        "stringData": {"key": "hidden-2"},
    }
    documents = render(small_release(learner=private, extraObjects=[secret]))
    (config,) = [d for d in of_kind(documents, "ConfigMap") if "values.yaml" in (d.get("data") or {})]
    assert "hidden" not in config["data"]["values.yaml"]
