"""Several pods put one model of the hub into a directory that they share: one loads it, the others wait."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from hub.server import Hub, serving
from safetensors.numpy import save_file
from slipstream.hub import shared

PODS = 6
SECONDS = 60.0
FILES = ("config.json", "model.safetensors", "tokenizer.json")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A hub with one model, some of whose files no run needs."""
    model = tmp_path / "hub/models/org/tiny"
    (model / "original").mkdir(parents=True)
    save_file({"a": numpy.arange(300_000, dtype=numpy.float32)}, model / "model.safetensors")
    (model / "config.json").write_text('{"model_type": "qwen2"}')
    (model / "tokenizer.json").write_text("{}")
    (model / "original/weights.safetensors").write_bytes(b"x" * 100)
    (model / "pytorch_model.bin").write_bytes(b"x" * 100)
    with serving(tmp_path / "hub") as server:
        yield server


def pod(hub: Hub, directory: Path, home: Path, *, revision: str = "a" * 40) -> "subprocess.Popen[str]":
    """Return the process of an init container, with its own home."""
    environment = {**os.environ, **hub.environment(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "slipstream.cli.download", "org/tiny", revision, str(directory)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def loads(hub: Hub) -> Counter[str]:
    """Return the number of requests for the content of each file."""
    paths = [path for verb, _, path in (line.partition(" ") for line in hub.requests) if verb == "GET"]
    return Counter(path.rpartition("/")[2] for path in paths if path.startswith(("/cdn/", "/org/")))


def test_pods_that_share_a_directory_load_each_file_once(hub: Hub, tmp_path: Path) -> None:
    directory = tmp_path / "claim/tiny"
    pods = [pod(hub, directory, tmp_path / f"home-{number}") for number in range(PODS)]
    logs = [each.communicate(timeout=SECONDS)[0] for each in pods]
    assert [each.returncode for each in pods] == [0] * PODS, logs
    assert sum("loading org/tiny" in log for log in logs) == 1
    size = (hub.folder / "models/org/tiny/model.safetensors").stat().st_size
    assert hub.sent == size
    assert set(loads(hub)) >= set(FILES)
    for name in FILES:
        assert (directory / name).read_bytes() == (hub.folder / "models/org/tiny" / name).read_bytes()
    assert not (directory / "original").exists()
    assert not (directory / "pytorch_model.bin").exists()


def test_when_a_pod_is_killed_while_it_loads_the_next_pod_loads(hub: Hub, tmp_path: Path) -> None:
    directory = tmp_path / "claim/tiny"
    hub.stall = True
    first = pod(hub, directory, tmp_path / "one")
    until(lambda: any("/cdn/" in request for request in hub.requests))
    second = pod(hub, directory, tmp_path / "two")
    assert second.stdout is not None
    assert "waiting for the pod that loads the model" in second.stdout.readline()
    hub.stall = False
    first.kill()
    first.communicate()
    log, _ = second.communicate(timeout=SECONDS)
    assert second.returncode == 0, log
    assert "loading org/tiny" in log
    assert (directory / shared.COMPLETE).exists()


def test_a_directory_that_is_complete_needs_no_hub(hub: Hub, tmp_path: Path) -> None:
    directory = tmp_path / "claim/tiny"
    for _ in range(2):
        hub.requests.clear()
        each = pod(hub, directory, tmp_path / "home")
        log, _ = each.communicate(timeout=SECONDS)
        assert each.returncode == 0, log
    assert "is complete" in log
    assert hub.requests == []


def test_a_missing_repository_is_an_error_and_not_marked_as_complete(hub: Hub, tmp_path: Path) -> None:
    directory = tmp_path / "claim/tiny"
    each = pod(hub, directory, tmp_path / "home", revision="nope")
    log, _ = each.communicate(timeout=SECONDS)
    assert each.returncode == 1
    assert "model.download.repository org/tiny has no revision 'nope'" in log
    assert not (directory / shared.COMPLETE).exists()


def test_shards_that_the_index_names_must_all_be_there(hub: Hub, tmp_path: Path) -> None:
    index = {"metadata": {}, "weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (hub.folder / "models/org/tiny/model.safetensors.index.json").write_text(json.dumps(index))
    directory = tmp_path / "claim/tiny"
    each = pod(hub, directory, tmp_path / "home")
    log, _ = each.communicate(timeout=SECONDS)
    assert each.returncode == 1
    assert "model-2.safetensors" in log
    assert not (directory / shared.COMPLETE).exists()


def until(condition: object) -> None:
    """Wait for a condition. Errors: AssertionError if it does not hold in time."""
    assert callable(condition)
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
