"""Durable state of the learner: written aside, flushed, and published by one rename.

    checkpoints/step_00000050/{model/, optimizer.safetensors, state.json[, reference/, critic.safetensors]}

The model is a Hugging Face directory, and so is a reference that moves; the optimizer's moments are
safetensors. No pickle.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from slipstream.learner.critic import Critic
from slipstream.learner.model import Policy, full_disk_is_os_error

SCHEMA = 1
PARTIAL = ".partial"
RNG = "rng.cpu"
CRITIC = "critic.safetensors"


class CheckpointError(ValueError):
    """A checkpoint is damaged, or belongs to another model or schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a checkpoint says besides tensors; `version` is the policy version, which is also the step."""

    version: int
    model_fingerprint: str
    memory: Mapping[str, Any] = field(default_factory=dict)
    """See slipstream.learner.memory."""
    schema: int = SCHEMA


def save_checkpoint(
    root: Path,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    state: State,
    *,
    reference: Policy | None = None,
    critic: Critic | None = None,
) -> Path:
    """Write a checkpoint, with the reference if it moves and the critic; it exists wholly or not at all.

    Errors: OSError (a full disk, say).
    """
    final = root / f"step_{state.version:08d}"
    partial = root / f"{PARTIAL}-{final.name}"
    _delete_partial(root)
    try:
        partial.mkdir(parents=True)
        policy.save(partial / "model")
        if reference is not None:
            reference.save(partial / "reference")
        with full_disk_is_os_error():
            save_file(_optimizer_tensors(policy, optimizer), partial / "optimizer.safetensors")
            if critic is not None:
                save_file(critic.named_state(), partial / CRITIC)
        (partial / "state.json").write_text(json.dumps(asdict(state)), encoding="utf-8")
        _flush(partial)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
    except OSError:
        _delete_partial(root)  # it holds the space that the next try needs
        raise
    _flush(root)
    return final


def save_model(policy: Policy, directory: Path) -> None:
    """Write the model as a Hugging Face directory, whole or not at all. Errors: OSError."""
    partial = directory.with_name(f"{PARTIAL}-{directory.name}")
    shutil.rmtree(partial, ignore_errors=True)
    policy.save(partial)
    _flush(partial)
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)


def latest_checkpoint(root: Path) -> Path | None:
    """The newest whole checkpoint, or None."""
    found = sorted(path for path in root.glob("step_*") if (path / "state.json").exists())
    return found[-1] if found else None


def read_state(checkpoint: Path, *, model_fingerprint: str) -> State:
    """The state of a checkpoint. Errors: CheckpointError when it is not one of this model and schema."""
    try:
        state = State(**json.loads((checkpoint / "state.json").read_text(encoding="utf-8")))
    except (json.JSONDecodeError, TypeError) as error:
        raise CheckpointError(f"{checkpoint}/state.json cannot be read: {error}") from error
    if state.schema != SCHEMA:
        raise CheckpointError(f"{checkpoint} has schema {state.schema}, this version reads {SCHEMA}")
    if state.model_fingerprint != model_fingerprint:
        raise CheckpointError(f"{checkpoint} is of another model; start a new run, or set model.path back")
    return state


def load_optimizer(checkpoint: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    """Restore the moments and the random state. Errors: CheckpointError when a parameter has none."""
    tensors = load_file(checkpoint / "optimizer.safetensors", device=str(policy.device))
    torch.set_rng_state(tensors.pop(RNG).cpu())
    for name, parameter in policy.model.named_parameters():
        state = {
            key.split("/", 1)[0]: value for key, value in tensors.items() if key.split("/", 1)[1] == name
        }
        if tensors and not state:
            raise CheckpointError(f"{checkpoint}/optimizer.safetensors has nothing for {name}")
        if state:
            optimizer.state[parameter] = {**state, "step": state["step"].cpu()}


def restore_critic(checkpoint: Path, critic: Critic) -> None:
    """Restore the critic; where the checkpoint has none, as from a run without, it stays new.

    Errors: CheckpointError when the checkpoint has another one.
    """
    if not (checkpoint / CRITIC).exists():
        return
    try:
        critic.load_state(load_file(checkpoint / CRITIC))
    except ValueError as error:
        raise CheckpointError(f"{checkpoint / CRITIC}: {error}") from error


def prune(root: Path, *, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints. Errors: OSError."""
    for path in sorted(root.glob("step_*"))[:-keep]:
        shutil.rmtree(path)


def _delete_partial(root: Path) -> None:
    """Delete what this or an earlier writer left unfinished."""
    for path in root.glob(f"{PARTIAL}-*"):
        shutil.rmtree(path, ignore_errors=True)


def _optimizer_tensors(policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    tensors = {RNG: torch.get_rng_state()}
    for name, parameter in policy.model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}/{name}"] = value
    return tensors


def _flush(directory: Path) -> None:
    """Force a directory and the files below it to disk."""
    for path in [directory, *directory.rglob("*")]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
