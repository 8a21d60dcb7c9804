"""The critic: predicts the value of the state before each sampled token, and learns from the returns.

    kind head    last hidden state of the policy ─▶ linear ─▶ V    in the policy's forward pass
    kind model   a backbone of its own ───────────▶ linear ─▶ V    in a forward pass of its own

Shape suffixes: T sampled tokens of a row, B sequences of a row, N = T + B, H hidden size.
"""

from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh

from slipstream.algorithms import Counts, ValueLoss, value_loss
from slipstream.config import CriticConfig, LearnerConfig, RunConfig
from slipstream.learner.batches.rows import Row
from slipstream.learner.policy import model, value_model
from slipstream.learner.ranks.sharding import checkpoint_activations
from slipstream.learner.training.schedule import learning_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The values of one row, in units of reward, float32 at least."""

    before_T: torch.Tensor
    """Before each sampled token, predicted from the token before it."""
    after_B: torch.Tensor
    """After the last token of each sequence."""


class Critic:
    """A value model and its own AdamW.

    Invariant: the critic changes nothing of the policy, except the gradient of the trunk that a head shares
    with it, with a loss coefficient above 0 and after the warm-up.
    """

    def __init__(
        self,
        module: value_model.ValueModel,
        *,
        settings: CriticConfig,
        learner: LearnerConfig,
        dtype: torch.dtype,
    ) -> None:
        self.module = module
        self.optimizer = torch.optim.AdamW(
            module.parameters(),
            lr=settings.peak(learner.learning_rate),
            betas=learner.betas,
            weight_decay=learner.weight_decay,
        )
        self.warming = False
        """Whether only the critic trains in the current step."""
        self._settings = settings
        self._learner = learner
        self._dtype = dtype

    @property
    def reads_policy(self) -> bool:
        """Whether `values` needs the policy's hidden states."""
        return self.module.backbone is None

    def begin_step(self, step: int) -> None:
        """Set the learning rate of the step that makes version `step` (1 is the first), and `warming`.

        The rate has the critic's peak and the learner's schedule.
        """
        learner = self._learner
        peak = self._settings.peak(learner.learning_rate)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, peak=peak, steps=learner.steps, schedule=learner.schedule)
        self.warming = step <= self._settings.warmup_steps

    def values(self, row: Row, hidden_NH: torch.Tensor | None, *, share: float = 0.0) -> Values:
        """Return the values of a row, with gradient if torch records one.

        hidden_NH: for a head, the policy's hidden states at `value_positions`.
        share: factor of the gradient that flows through them into the trunk.
        """
        read_NH = None if hidden_NH is None else _shared(hidden_NH, share)
        with model.autocast(row.tokens_R.device, self._dtype):
            value_N = self.module(
                read_NH, row.tokens_R, row.positions_R, row.attention_RR, value_positions(row)
            )
        tokens = row.predictors_T.shape[0]
        return Values(before_T=value_N[:tokens], after_B=value_N[tokens:])

    def values_without_gradient(self, row: Row, hidden_NH: torch.Tensor | None) -> Values:
        """Return the values of a row as constants."""
        with torch.no_grad():
            return self.values(row, hidden_NH)

    def loss(
        self,
        row: Row,
        hidden_NH: torch.Tensor | None,
        *,
        old: Values | None,
        returns_T: torch.Tensor | None,
        trains_T: torch.Tensor,
        counts: Counts,
    ) -> ValueLoss:
        """Return the value loss of a row, divided by the counts of its minibatch, with gradient.

        old, returns_T: values and returns before the first update of the batch.
        trains_T: mask of the tokens that are not over age.
        """
        assert old is not None, "row constants have values wherever there is a critic"
        assert returns_T is not None, "critic_advantages computes them before anything trains"
        share = 0.0 if self.warming else self._settings.loss_coefficient
        return value_loss(
            self.values(row, hidden_NH, share=share).before_T,
            old.before_T,
            returns_T,
            trains_T,
            counts=counts,
            clip_range=self._settings.clip_range,
        )

    def clip(self) -> float:
        """Scale the critic's gradient down to learner.max_grad_norm; return the norm before."""
        limit = self._learner.max_grad_norm
        return float(model.whole(torch.nn.utils.clip_grad_norm_(self.module.parameters(), limit)))

    def named_state(self) -> dict[str, torch.Tensor]:
        """Return weights and moments for a checkpoint, by `module/NAME` and `optimizer/KEY/NAME`."""
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter in self.module.named_parameters():
            tensors[f"module/{name}"] = parameter.detach()
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{key}/{name}"] = value
        return tensors


def load_critic(config: RunConfig, policy: model.Policy, mesh: DeviceMesh | None = None) -> Critic | None:
    """Load the critic as it is before the first step; None if the algorithm has no critic.

    mesh: the ranks over which it is sharded, None for one rank. Errors: those of `load_value_model`.
    """
    settings = config.learner.critic
    if settings is None:
        return None
    module = value_model.load_value_model(settings, config, policy, mesh)
    if config.learner.activation_checkpointing and module.backbone is not None:
        checkpoint_activations(module.backbone)
    return Critic(module, settings=settings, learner=config.learner, dtype=policy.dtype)


def value_positions(row: Row) -> torch.Tensor:
    """Return the tokens [N] of a row from which a critic predicts: before sampled ones, and the last ones."""
    return torch.cat([row.predictors_T, row.ends_B])


def _shared(hidden_NH: torch.Tensor, share: float) -> torch.Tensor:
    """Return the same numbers; only a share of their gradient flows back."""
    constant_NH = hidden_NH.detach()
    return constant_NH if share == 0 else constant_NH + share * (hidden_NH - constant_NH)
