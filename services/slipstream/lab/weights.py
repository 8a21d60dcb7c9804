"""The policy and the optimizer of a checkpoint, in this process: what is done to them ends with it.

Suffix: _T tokens of a batch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from slipstream.algorithms.spec import LossSpec
from slipstream.config import RunConfig
from slipstream.learner.batches.row_sharding import RowSharding
from slipstream.learner.batches.rows import Row
from slipstream.learner.checkpoints.checkpoint import latest_checkpoint, read_state
from slipstream.learner.checkpoints.memory import Memory
from slipstream.learner.policy import loading, lora
from slipstream.learner.ranks import ranks, sharding
from slipstream.learner.training import models, update
from slipstream.learner.training.forward import Forward
from slipstream.learner.training.state import policy_tensors, restore_policy

Device = Literal["cpu", "cuda"]


def checkpoint_before(run_dir: Path, step: int) -> Path | None:
    """Return the newest checkpoint that was made before a step; None without one."""
    return latest_checkpoint(run_dir / "checkpoints", version=step - 1)


def size_of(checkpoint: Path) -> int:
    """Return the bytes of a checkpoint's tensors: weights, and moments of the optimizer."""
    return sum(file.stat().st_size for file in (checkpoint / "tensors").iterdir())


class Weights:
    """A policy with its optimizer, which `restore` sets back to the checkpoint.

    Invariant: after `restore`, weights and moments are bit for bit those of the checkpoint.
    """

    def __init__(self, config: RunConfig, checkpoint: Path | None, loss: LossSpec, *, device: Device) -> None:
        """Load a checkpoint; None: the model that the run started from, with a new optimizer.

        loss: of the run. Errors: CheckpointError; ValueError and OSError for a model that cannot be loaded.
        """
        loading.without_progress_bars()
        policy = lora.load_trained(config, device=torch.device(device))
        loading.choose_attention(policy, share_prompts=config.learner.share_prompts)
        if config.learner.activation_checkpointing:
            sharding.checkpoint_activations(policy.model)
        forward = Forward(
            config.learner,
            temperature=config.rollout.temperature,
            entropy=loss.entropy is not None,
            hidden=False,
            routers=False,
        )
        self.policy = policy
        self.models = models.Models(policy=policy, forward=forward, ranks=ranks.Alone())
        self.update = update.Update(config.learner, self.models)
        shaping = config.algorithm.resolved_shaping(max_new_tokens=config.rollout.max_new_tokens)
        memory = Memory.fresh(loss.entropy, shaping.collapse_alarm)
        self.version = 0
        if checkpoint is not None:
            restore_policy(policy, self.update.optimizer, checkpoint)
            state = read_state(checkpoint)
            self.version, memory = state.version, memory.restored(state.memory)
        self.entropy_coefficient = memory.active_entropy(loss.entropy)
        """Of the step after the checkpoint."""
        self.sharding = RowSharding(config.learner, policy.device, ranks.Alone())
        tensors = policy_tensors(policy, self.update.optimizer)
        self._saved = {name: tensor.clone() for name, tensor in tensors.items()}
        self._new = not self.update.optimizer.state

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters that train."""
        return [parameter for _, parameter in self.policy.trained_parameters()]

    @torch.no_grad()
    def restore(self) -> None:
        """Set weights and optimizer back, and free the gradients."""
        self.update.forget_gradients()
        if self._new:
            self.update.optimizer.state.clear()
        for name, tensor in policy_tensors(self.policy, self.update.optimizer).items():
            tensor.copy_(self._saved[name])

    def logprobs(self, rows: Sequence[Row]) -> Tensor:
        """Return the logprobs [T] of the tokens of rows, each at its number in `order_T`; NaN in gaps."""
        return self._placed(
            rows, [self.models.forward.without_gradient(self.policy, row).logprobs_T for row in rows]
        )

    def _placed(self, rows: Sequence[Row], values: Sequence[Tensor]) -> Tensor:
        order_T = torch.cat([row.order_T for row in rows]).cpu()
        placed_T = torch.full((int(order_T.max()) + 1,), torch.nan, dtype=torch.float64)
        placed_T[order_T] = torch.cat(list(values)).double().cpu()
        return placed_T

    def accumulate(self, rows: Sequence[Row], slopes_T: Tensor, entropy_slopes_T: Tensor | None) -> None:
        """Add to the gradients those of a loss with these slopes by the logprobs and the entropies.

        The gradient by the weights is Jᵀ · slopes, with J the derivative of the logprobs by the weights.
        """
        for row in rows:
            here_T = slopes_T[row.order_T.cpu()]
            of_entropy_T = None if entropy_slopes_T is None else entropy_slopes_T[row.order_T.cpu()]
            if not here_T.any() and (of_entropy_T is None or not of_entropy_T.any()):
                continue
            now = self.models.forward(self.policy, row)
            outputs, slopes = [now.logprobs_T], [here_T.to(now.logprobs_T)]
            if of_entropy_T is not None:
                outputs.append(now.entropy_T)
                slopes.append(of_entropy_T.to(now.entropy_T))
            torch.autograd.backward(outputs, slopes)
