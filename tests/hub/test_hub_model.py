"""A model that is named by its id is loaded from a local server with the protocol of the hub."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from hub.server import Hub, serving
from safetensors.numpy import save_file

WEIGHTS = 300_000
PROGRAM = """
import json, sys
from slipstream.config.sections.model import ModelConfig
from slipstream.hub import access
from slipstream.hub.model import fetch_model
access.FIRST_PAUSE_SECONDS = 0.01
try:
    model = ModelConfig(path="org/tiny", **json.loads(sys.argv[1]))
    found = fetch_model(model, weights=json.loads(sys.argv[2]))
    print(json.dumps({"directory": str(found.directory), "commit": found.commit}))
except access.HubError as error:
    print(json.dumps({"error": str(error)}))
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A hub with one model of two shards, and a folder that no run needs."""
    model = tmp_path / "hub/models/org/tiny"
    (model / "original").mkdir(parents=True)
    for file, name in (("model-1.safetensors", "a"), ("model-2.safetensors", "b")):
        save_file({name: numpy.arange(WEIGHTS, dtype=numpy.float32)}, model / file)
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    (model / "config.json").write_text('{"model_type": "qwen2"}')
    (model / "tokenizer.json").write_text("{}")
    (model / "original/weights.safetensors").write_bytes(b"x" * 100)
    with serving(tmp_path / "hub") as server:
        yield server


def fetched(hub: Hub, home: Path, *, weights: bool = True, **options: Any) -> dict[str, str]:
    """Return the output of another process that loads the model, with `environment`."""
    hub.requests.clear()
    hub.sent = 0
    environment = {**os.environ, **hub.environment(home), **options.pop("environment", {})}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", PROGRAM, json.dumps(options), json.dumps(weights)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, str] = json.loads(done.stdout)
    return result


def names(directory: str) -> set[str]:
    return {path.name for path in Path(directory).iterdir()}


def test_a_check_loads_configuration_and_tokenizer_and_a_run_the_weights_once(
    hub: Hub, tmp_path: Path
) -> None:
    light = fetched(hub, tmp_path / "home", weights=False)
    assert names(light["directory"]) == {"config.json", "tokenizer.json", "model.safetensors.index.json"}
    assert (light["commit"], hub.sent) == (hub.commit, 0)
    loaded = fetched(hub, tmp_path / "home")
    assert loaded == light
    assert names(loaded["directory"]) > {"model-1.safetensors", "model-2.safetensors"}
    assert not {"original", "weights.safetensors"} & names(loaded["directory"])
    assert hub.sent > 2 * 4 * WEIGHTS
    assert fetched(hub, tmp_path / "home") == loaded
    assert hub.sent == 0
    assert not [request for request in hub.requests if "/resolve/" in request]


def test_downloads_that_are_reset_in_the_middle_are_tried_again(hub: Hub, tmp_path: Path) -> None:
    hub.cuts = 3
    model = fetched(hub, tmp_path / "home")
    assert hub.cuts == 0
    assert_same(hub, model)


@pytest.mark.long
def test_a_download_whose_connection_is_closed_resumes_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    """The library writes blocks of ten million bytes, and resumes after the last complete block."""
    large = hub.folder / "models/org/tiny/model-2.safetensors"
    save_file({"b": numpy.arange(6_000_000, dtype=numpy.float32)}, large)
    hub.cuts, hub.how = 2, "closed"
    model = fetched(hub, tmp_path / "home")
    assert_same(hub, model)
    assert hub.ranges


def assert_same(hub: Hub, model: dict[str, str]) -> None:
    for name in ("model-1.safetensors", "model-2.safetensors"):
        source = hub.folder / "models/org/tiny" / name
        assert (Path(model["directory"]) / name).read_bytes() == source.read_bytes()


@pytest.mark.long
def test_an_incomplete_download_is_never_used_as_a_model(hub: Hub, tmp_path: Path) -> None:
    hub.cuts = 1_000
    error = fetched(hub, tmp_path / "home")["error"]
    assert "the hub did not answer for model.path org/tiny after 5 attempts" in error
    assert "start again" in error
    hub.cuts = 0
    assert "not complete in the cache" in fetched(hub, tmp_path / "home", offline=True)["error"]
    assert "commit" in fetched(hub, tmp_path / "home")


def test_a_cached_file_that_was_cut_off_is_an_error_that_names_it(hub: Hub, tmp_path: Path) -> None:
    directory = Path(fetched(hub, tmp_path / "home")["directory"])
    blob = (directory / "model-2.safetensors").resolve()
    blob.write_bytes(blob.read_bytes()[:-1000])
    error = fetched(hub, tmp_path / "home")["error"]
    assert "model-2.safetensors" in error
    assert "and its header says" in error
    assert "remove that file and load it again" in error


def test_offline_a_model_is_loaded_from_the_cache_without_a_request(hub: Hub, tmp_path: Path) -> None:
    loaded = fetched(hub, tmp_path / "home")
    assert fetched(hub, tmp_path / "home", offline=True) == loaded
    assert fetched(hub, tmp_path / "home", environment={"HF_HUB_OFFLINE": "1"}) == loaded
    assert fetched(hub, tmp_path / "home", offline=True, revision=hub.commit) == loaded
    assert hub.requests == []
    error = fetched(hub, tmp_path / "elsewhere", offline=True)["error"]
    assert "offline mode is on: load it once with a connection" in error


@pytest.mark.long
def test_a_pinned_run_stays_at_its_commit_when_main_moves(hub: Hub, tmp_path: Path) -> None:
    first = fetched(hub, tmp_path / "home")
    old, hub.commit = hub.commit, "b" * 40
    assert fetched(hub, tmp_path / "home")["commit"] == "b" * 40
    assert fetched(hub, tmp_path / "home", revision=old) == first


@pytest.mark.long
def test_a_private_model_needs_a_token_from_a_file_or_the_environment(hub: Hub, tmp_path: Path) -> None:
    hub.token = "secret"
    error = fetched(hub, tmp_path / "home")["error"]
    assert "neither a local directory nor on the hub, or it is private" in error
    assert "HF_TOKEN or token_file" in error
    (tmp_path / "token").write_text("secret\n")
    assert "commit" in fetched(hub, tmp_path / "home", token_file=str(tmp_path / "token"))
    assert "commit" in fetched(hub, tmp_path / "other", environment={"HF_TOKEN": "secret"})
    (tmp_path / "token").write_text("wrong\n")
    error = fetched(hub, tmp_path / "third", token_file=str(tmp_path / "token"))["error"]
    assert f"the token in {tmp_path / 'token'}" in error
    assert "secret" not in error
    error = fetched(hub, tmp_path / "home", token_file=str(tmp_path / "none"))["error"]
    assert "none cannot be read" in error


@pytest.mark.long
def test_refusals_of_the_hub_are_errors_with_a_remedy(hub: Hub, tmp_path: Path) -> None:
    assert (
        "has no revision 'nope'; correct `revision`" in fetched(hub, tmp_path / "a", revision="nope")["error"]
    )
    hub.gated = True
    assert "is gated: accept its terms" in fetched(hub, tmp_path / "b")["error"]
    hub.gated = False
    for file in (hub.folder / "models/org/tiny").glob("*.safetensors"):
        file.rename(file.with_suffix(".bin"))
    assert "has no .safetensors on the hub" in fetched(hub, tmp_path / "c", weights=False)["error"]


@pytest.mark.long
def test_a_busy_hub_is_retried(hub: Hub, tmp_path: Path) -> None:
    hub.busy = 3
    assert "commit" in fetched(hub, tmp_path / "home", weights=False)
    assert hub.busy == 0
