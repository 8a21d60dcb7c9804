"""The tensors of a training step that a checkpoint holds, by name.

    model/NAME   optimizer/{exp_avg, exp_avg_sq, step}/NAME   reference/NAME   rng.cpu
    critic/module/NAME   critic/optimizer/{…}/NAME

The random state is that of the CPU: training draws no random numbers on a GPU, and equal ones on all ranks.
"""

from pathlib import Path

import torch

from slipstream.learner.checkpoints.checkpoint import load_tensors, stored_names
from slipstream.learner.policy import checkpoint_form, lora, model
from slipstream.learner.training.step import TrainingStep

RNG = "rng.cpu"


def collect(training: TrainingStep) -> dict[str, torch.Tensor]:
    """Return the tensors of this rank; they are the live tensors of the model, not copies."""
    tensors = {RNG: torch.get_rng_state(), **policy_tensors(training.policy, training.optimizer)}
    if training.reference is not None and training.reference.moves:
        for name, parameter in training.reference.policy.model.named_parameters():
            tensors[f"reference/{name}"] = parameter.detach()
    if training.critic is not None:
        tensors |= {f"critic/{name}": tensor for name, tensor in training.critic.named_state().items()}
    return tensors


def policy_tensors(policy: model.Policy, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the live tensors of a policy and its optimizer."""
    tensors = {}
    for name, parameter in policy.trained_parameters():
        tensors[f"model/{name}"] = parameter.detach()
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer/{key}/{name}"] = value
    return tensors


def restore_policy(policy: model.Policy, optimizer: torch.optim.Optimizer, checkpoint: Path) -> None:
    """Load policy and optimizer alone, in one process. Errors: CheckpointError."""
    lora.check_adapters(policy, checkpoint)
    if any(name.startswith("optimizer/") for name in stored_names(checkpoint)):
        _make_moments(optimizer)
    load_tensors(checkpoint, policy_tensors(policy, optimizer), alone=True)


def restore(training: TrainingStep, checkpoint: Path) -> None:
    """Load the tensors of a checkpoint. Errors: CheckpointError, also for a parameter without moments.

    A moving reference or a critic that the checkpoint lacks, because the run had none then, keeps its values.
    """
    lora.check_adapters(training.policy, checkpoint)
    stored = stored_names(checkpoint)
    if any(name.startswith("optimizer/") for name in stored):
        _make_moments(training.optimizer)
    if training.critic is not None and any(name.startswith("critic/optimizer/") for name in stored):
        _make_moments(training.critic.optimizer)
    targets = collect(training)
    for part in ("reference/", "critic/"):
        if not any(name.startswith(part) for name in stored):
            targets = {name: tensor for name, tensor in targets.items() if not name.startswith(part)}
    unknown = sorted(name for name in stored - set(targets) if name.startswith("critic/module/"))
    if unknown and training.critic is not None:
        raise checkpoint_form.CheckpointError(
            f"{checkpoint} has {unknown[0]}, and learner.critic is of another kind; set it back, or start a "
            "new run"
        )
    load_tensors(checkpoint, targets)
    torch.set_rng_state(targets[RNG])


def _make_moments(optimizer: torch.optim.Optimizer) -> None:
    """Make the state of AdamW, which AdamW itself makes only in its first step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
