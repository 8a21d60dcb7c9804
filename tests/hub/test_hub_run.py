"""The commands and the pods with a model of the hub: which files they load, and at which commit."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hub.server import Hub, serving
from slipstream.config.sections.model import TinyModel
from slipstream.learner.policy.tiny import make_tiny_model

ROOT = Path(__file__).resolve().parents[2]
CLI = ("-m", "slipstream.cli")
FAKE_RUN = (str(ROOT / "tests/cli/launch.py"),)
TINY = TinyModel(layers=1, width=64, heads=2, max_tokens=64)
RUN = """
name: job
runs_dir: {folder}/runs
model: {{path: org/tiny}}
rollout: {{max_new_tokens: 4}}
learner: {{steps: 2}}
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    make_tiny_model(TINY, tmp_path / "hub/models/org/tiny", seed=1)
    (tmp_path / "run.yaml").write_text(RUN.format(folder=tmp_path))
    with serving(tmp_path / "hub") as server:
        yield server


def start(hub: Hub, folder: Path, *command: str, **environment: str) -> "subprocess.Popen[str]":
    """Run a process in `folder`, with a cache of the hub in it."""
    paths = os.pathsep.join([str(ROOT / "services"), str(ROOT / "tests")])
    marks = {
        "FAKE_MARKS": str(folder),
        "PYTHONPATH": paths,
        **hub.environment(folder / "home"),
        **environment,
    }
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, **marks},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(hub: Hub, folder: Path, *command: str, **environment: str) -> tuple[int, str, str]:
    process = start(hub, folder, *command, **environment)
    out, error = process.communicate(timeout=120)
    return process.returncode, out, error


def resolved(folder: Path) -> dict[str, str]:
    """Return the `model` section of the newest run, as its pods read it."""
    model: dict[str, str] = yaml.safe_load((folder / "runs/latest/config.yaml").read_text())["model"]
    return model


def test_validate_reads_small_files_only_and_prints_the_commit(hub: Hub, tmp_path: Path) -> None:
    status, out, error = run(hub, tmp_path, *CLI, "validate", "run.yaml")
    assert (status, error) == (0, ""), error
    assert f"model org/tiny@main is commit {hub.commit}" in out
    assert hub.sent == 0
    assert not list((tmp_path / "home").rglob("*.safetensors"))


@pytest.mark.long
def test_validate_reports_the_faults_of_a_hub_model_as_of_a_directory(hub: Hub, tmp_path: Path) -> None:
    (hub.folder / "models/org/tiny/tokenizer.json").write_text("{}")
    status, _, error = run(hub, tmp_path, *CLI, "validate", "run.yaml")
    assert status == 2
    assert "tokenizer.json is no tokenizer" in error
    status, _, error = run(hub, tmp_path, *CLI, "validate", "run.yaml", "--set", "model.path=org/none")
    assert status == 2
    assert error.startswith("slipstream: model.path org/none is neither a local directory nor on the hub")
    assert error.count("\n") == 1


def test_a_run_loads_the_weights_and_its_resume_stays_at_its_commit(hub: Hub, tmp_path: Path) -> None:
    status, out, error = run(hub, tmp_path, *FAKE_RUN, "run.yaml")
    assert status == 0, error
    assert f"model org/tiny at {hub.commit[:12]}" in out
    first = resolved(tmp_path)
    assert first["revision"] == hub.commit
    assert first["path"].endswith(f"snapshots/{hub.commit}")
    assert Path(first["path"], "model.safetensors").stat().st_size == hub.sent
    pins = json.loads((tmp_path / "runs/latest/revisions.json").read_text())
    assert pins == {"model org/tiny@main": hub.commit}
    hub.older, hub.commit = (hub.commit,), "b" * 40
    hub.requests.clear()
    status, _, error = run(hub, tmp_path, *FAKE_RUN, "run.yaml", "--resume", "learner.steps=4")
    assert status == 0, error
    assert resolved(tmp_path) == first
    assert hub.requests == []
    status, _, error = run(hub, tmp_path, *FAKE_RUN, "run.yaml")
    assert status == 0, error
    assert resolved(tmp_path)["revision"] == "b" * 40


@pytest.mark.long
def test_an_interrupted_download_ends_at_once_and_leaves_no_process(hub: Hub, tmp_path: Path) -> None:
    hub.stall = True
    mark = f"SLIPSTREAM_TEST_MARK={tmp_path}"
    process = start(hub, tmp_path, *CLI, "run", "run.yaml", SLIPSTREAM_TEST_MARK=str(tmp_path))
    deadline = time.monotonic() + 60
    while not any("/cdn/" in request for request in hub.requests) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    interrupted_at = time.monotonic()
    assert process.wait(30) == 130
    assert time.monotonic() - interrupted_at < 10
    process.communicate()
    time.sleep(0.2)
    assert not [pid for pid in Path("/proc").glob("[0-9]*") if mark in environment_of(pid)]


def environment_of(process: Path) -> str:
    try:
        return (process / "environ").read_text(errors="replace")
    except OSError:
        return ""


@pytest.mark.parametrize("pod", ["replay", "rollout"])
def test_a_pod_that_starts_by_itself_needs_commits(hub: Hub, tmp_path: Path, pod: str) -> None:
    data = ["--set", "data={kind: hub, id: org/sums}"]
    status, _, error = run(hub, tmp_path, "-m", f"slipstream.{pod}", "--config", "run.yaml", *data)
    assert status == 2
    assert "data.revision (of org/sums), model.revision (of org/tiny): a pod needs a commit" in error
    assert "`slipstream validate` prints it" in error
