"""A checkpoint exists wholly or not at all, and training goes on from it bit for bit."""

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from learner.fakes import config_with, contrast, unguarded
from slipstream.learner.checkpoint import (
    CheckpointError,
    State,
    latest_checkpoint,
    load_optimizer,
    prune,
    read_state,
    save_checkpoint,
)
from slipstream.learner.model import Policy, load_policy
from slipstream.learner.step import TrainingStep

CPU = torch.device("cpu")
CONFIG = config_with("learner.weight_decay=0.1", "learner.schedule.warmup_steps=3")


def step(training: TrainingStep, version: int) -> None:
    """The step that makes `version`."""
    training.train([contrast(str(version))], version=version - 1, update=unguarded)


def state(version: int, fingerprint: str = "f") -> State:
    return State(version=version, model_fingerprint=fingerprint)


def weights(policy: Policy) -> list[torch.Tensor]:
    return [tensor.detach().clone() for _, tensor in policy.named_tensors()]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk that fills up: writes beyond `size` bytes of a file fail."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_resumed_run_makes_bit_for_bit_the_weights_of_one_that_never_stopped(
    new_policy: Callable[[], Policy], tmp_path: Path
) -> None:
    whole = TrainingStep(new_policy(), CONFIG)
    for version in (1, 2, 3):
        step(whole, version)
        if version == 1:
            saved = save_checkpoint(tmp_path, whole.policy, whole.optimizer, state(1))
    source = whole.policy.source
    policy = load_policy(saved / "model", source=source, device=CPU, dtype=torch.float32)
    resumed = TrainingStep(policy, CONFIG)
    load_optimizer(saved, policy, resumed.optimizer)
    for version in (2, 3):
        step(resumed, version)
    assert all(map(torch.equal, weights(resumed.policy), weights(whole.policy)))


def test_the_random_state_is_restored(policy: Policy, tmp_path: Path) -> None:
    training = TrainingStep(policy, CONFIG)
    torch.manual_seed(7)
    saved = save_checkpoint(tmp_path, policy, training.optimizer, state(1))
    expected = torch.rand(3)
    torch.manual_seed(8)
    load_optimizer(saved, policy, training.optimizer)
    assert torch.equal(torch.rand(3), expected)


def test_a_checkpoint_holds_no_pickle(policy: Policy, tmp_path: Path) -> None:
    training = TrainingStep(policy, CONFIG)
    step(training, 1)
    saved = save_checkpoint(tmp_path, policy, training.optimizer, state(1))
    names = {path.name for path in saved.rglob("*") if path.is_file()}
    assert {"state.json", "optimizer.safetensors", "model.safetensors", "tokenizer.json"} <= names
    assert {Path(name).suffix for name in names} <= {".json", ".safetensors", ".jinja"}


def test_the_newest_whole_checkpoint_is_found_in_order_of_versions(policy: Policy, tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "none") is None
    optimizer = TrainingStep(policy, CONFIG).optimizer
    for version in (9, 10, 100):
        save_checkpoint(tmp_path, policy, optimizer, state(version))
    (tmp_path / "step_00000200").mkdir()
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert read_state(found, model_fingerprint="f").version == 100


def test_another_model_schema_or_damage_is_refused_with_its_path(policy: Policy, tmp_path: Path) -> None:
    saved = save_checkpoint(tmp_path, policy, TrainingStep(policy, CONFIG).optimizer, state(1))
    with pytest.raises(CheckpointError, match=rf"{saved} is of another model"):
        read_state(saved, model_fingerprint="other")
    content = json.loads((saved / "state.json").read_text())
    (saved / "state.json").write_text(json.dumps(content | {"schema": 99}))
    with pytest.raises(CheckpointError, match="has schema 99"):
        read_state(saved, model_fingerprint="f")
    for text in ("{", '{"surprise": 1}', "[1]"):
        (saved / "state.json").write_text(text)
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_state(saved, model_fingerprint="f")


def test_moments_that_miss_a_parameter_are_refused_by_its_name(policy: Policy, tmp_path: Path) -> None:
    training = TrainingStep(policy, CONFIG)
    step(training, 1)
    name, parameter = next(iter(policy.model.named_parameters()))
    del training.optimizer.state[parameter]
    saved = save_checkpoint(tmp_path, policy, training.optimizer, state(1))
    with pytest.raises(CheckpointError, match=rf"has nothing for {name}"):
        load_optimizer(saved, policy, training.optimizer)


def test_a_writer_that_was_killed_leaves_the_last_checkpoint_and_its_rest_is_deleted(
    policy: Policy, tmp_path: Path
) -> None:
    optimizer = TrainingStep(policy, CONFIG).optimizer
    first = save_checkpoint(tmp_path, policy, optimizer, state(1))
    rest = tmp_path / ".partial-step_00000002"
    (rest / "model").mkdir(parents=True)
    (rest / "model" / "model.safetensors").write_bytes(b"half")
    assert latest_checkpoint(tmp_path) == first
    save_checkpoint(tmp_path, policy, optimizer, state(3))
    assert not rest.exists()


@pytest.mark.parametrize("size", [100, 50_000, 200_000], ids=["config", "weights", "moments"])
def test_a_full_disk_is_an_os_error_and_leaves_only_the_last_checkpoint(
    policy: Policy, tmp_path: Path, size: int
) -> None:
    training = TrainingStep(policy, CONFIG)
    step(training, 1)
    first = save_checkpoint(tmp_path, policy, training.optimizer, state(1))
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    with files_of_at_most(size), pytest.raises(OSError, match="too large"):
        save_checkpoint(tmp_path, policy, training.optimizer, state(2))
    assert list(tmp_path.iterdir()) == [first]
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before
    second = save_checkpoint(tmp_path, policy, training.optimizer, state(2))
    assert latest_checkpoint(tmp_path) == second


def test_a_directory_that_cannot_be_made_is_an_os_error(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file is in the way")
    with pytest.raises(OSError, match="checkpoints"):
        save_checkpoint(tmp_path / "checkpoints", policy, TrainingStep(policy, CONFIG).optimizer, state(1))


def test_only_the_newest_are_kept(policy: Policy, tmp_path: Path) -> None:
    optimizer = TrainingStep(policy, CONFIG).optimizer
    for version in (1, 2, 3):
        save_checkpoint(tmp_path, policy, optimizer, state(version))
    prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00000002", "step_00000003"]
    prune(tmp_path, keep=5)
    assert len(list(tmp_path.iterdir())) == 2
