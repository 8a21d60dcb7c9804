"""A checkpoint is complete or does not exist, and training resumes from it bit for bit."""

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from learner.fakes import config_with, contrast, save
from slipstream.learner.checkpoints.checkpoint import State, latest_checkpoint, prune, read_state
from slipstream.learner.export import export, main
from slipstream.learner.policy.checkpoint_form import CheckpointError
from slipstream.learner.policy.model import Policy
from slipstream.learner.training.state import restore
from slipstream.learner.training.step import TrainingStep
from transformers import AutoModelForCausalLM

CONFIG = config_with("learner.weight_decay=0.1", "learner.schedule.warmup_steps=3")


def step(training: TrainingStep, version: int) -> None:
    """The step that makes `version`."""
    training.train([contrast(str(version))], version=version - 1)


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
    uninterrupted = TrainingStep(new_policy(), CONFIG)
    for version in (1, 2, 3):
        step(uninterrupted, version)
        if version == 1:
            saved = save(tmp_path, uninterrupted, state(1))
    resumed = TrainingStep(new_policy(), CONFIG)
    restore(resumed, saved)
    for version in (2, 3):
        step(resumed, version)
    assert all(map(torch.equal, weights(resumed.policy), weights(uninterrupted.policy)))


def test_the_random_state_is_restored(policy: Policy, tmp_path: Path) -> None:
    training = TrainingStep(policy, CONFIG)
    torch.manual_seed(7)
    saved = save(tmp_path, training, state(1))
    expected = torch.rand(3)
    torch.manual_seed(8)
    restore(training, saved)
    assert torch.equal(torch.rand(3), expected)


def test_a_checkpoint_holds_no_pickle(policy: Policy, tmp_path: Path) -> None:
    training = TrainingStep(policy, CONFIG)
    step(training, 1)
    saved = save(tmp_path, training, state(1))
    names = {path.name for path in saved.rglob("*") if path.is_file()}
    assert {"state.json", "config.json", "tokenizer.json"} <= names
    assert any(name.endswith(".safetensors") for name in names)
    assert {Path(name).suffix for name in names} <= {".json", ".safetensors", ".jinja"}


def test_the_newest_whole_checkpoint_is_found_in_order_of_versions(policy: Policy, tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "none") is None
    training = TrainingStep(policy, CONFIG)
    for version in (9, 10, 100):
        save(tmp_path, training, state(version))
    (tmp_path / "step_00000200").mkdir()
    checkpoint = latest_checkpoint(tmp_path)
    assert checkpoint is not None
    assert read_state(checkpoint, model_fingerprint="f").version == 100


def test_another_model_schema_or_damage_is_refused_with_its_path(policy: Policy, tmp_path: Path) -> None:
    saved = save(tmp_path, TrainingStep(policy, CONFIG), state(1))
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
    saved = save(tmp_path, training, state(1))
    with pytest.raises(CheckpointError, match=rf"has nothing for optimizer/exp_avg/{name}"):
        restore(training, saved)


def test_a_writer_that_was_killed_leaves_the_last_checkpoint_and_its_rest_is_deleted(
    policy: Policy, tmp_path: Path
) -> None:
    training = TrainingStep(policy, CONFIG)
    first = save(tmp_path, training, state(1))
    rest = tmp_path / ".partial-step_00000002"
    (rest / "model").mkdir(parents=True)
    (rest / "model" / "model.safetensors").write_bytes(b"half")
    assert latest_checkpoint(tmp_path) == first
    save(tmp_path, training, state(3))
    assert not rest.exists()


@pytest.mark.parametrize("size", [100, 50_000], ids=["config", "tensors"])
def test_a_full_disk_is_an_os_error_and_leaves_only_the_last_checkpoint(
    policy: Policy, tmp_path: Path, size: int
) -> None:
    training = TrainingStep(policy, CONFIG)
    step(training, 1)
    first = save(tmp_path, training, state(1))
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    with files_of_at_most(size), pytest.raises(OSError, match="too large"):
        save(tmp_path, training, state(2))
    assert list(tmp_path.iterdir()) == [first]
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before
    second = save(tmp_path, training, state(2))
    assert latest_checkpoint(tmp_path) == second


def test_a_directory_that_cannot_be_made_is_an_os_error(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file is in the way")
    with pytest.raises(OSError, match="checkpoints"):
        save(tmp_path / "checkpoints", TrainingStep(policy, CONFIG), state(1))


def test_only_the_newest_are_kept(policy: Policy, tmp_path: Path) -> None:
    training = TrainingStep(policy, CONFIG)
    for version in (1, 2, 3):
        save(tmp_path, training, state(version))
    prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00000002", "step_00000003"]
    prune(tmp_path, keep=5)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_checkpoint_of_another_shape_or_with_damaged_tensors_is_refused(
    policy: Policy, tmp_path: Path
) -> None:
    training = TrainingStep(policy, CONFIG)
    saved = save(tmp_path, training, state(1))
    parameter = next(policy.model.parameters())
    parameter.data = parameter.data[:-1]
    with pytest.raises(CheckpointError, match="does not fit this model"):
        restore(training, saved)
    for path in (saved / "tensors").iterdir():
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot be read"):
        restore(training, saved)


def test_an_exported_checkpoint_loads_as_the_model_that_was_trained(policy: Policy, tmp_path: Path) -> None:
    training = TrainingStep(policy, CONFIG)
    step(training, 1)
    export(save(tmp_path, training, state(1)), tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    pairs = zip(loaded.named_parameters(), policy.model.named_parameters(), strict=True)
    assert all(name == own and torch.equal(a, b) for (name, a), (own, b) in pairs)
    assert (tmp_path / "model" / "tokenizer.json").exists()


def test_export_writes_the_newest_checkpoint_of_a_run_or_names_the_fault(
    policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = TrainingStep(policy, CONFIG)
    for version in (1, 2):
        save(tmp_path / "checkpoints", training, state(version))
    output = str(tmp_path / "model")
    assert main([str(tmp_path), output, "--dtype", "bfloat16"]) == 0
    assert "step_00000002 written to" in capsys.readouterr().out
    assert AutoModelForCausalLM.from_pretrained(output, dtype="auto").dtype is torch.bfloat16
    assert main([str(tmp_path), output]) == 1
    assert "model exists; remove it" in capsys.readouterr().err
    assert main([str(tmp_path / "model"), str(tmp_path / "other")]) == 1
    assert "is neither a checkpoint (state.json) nor a run" in capsys.readouterr().err
