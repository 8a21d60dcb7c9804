"""The critic: the value of the state before each sampled token, and how that value function is trained.

    kind head    the policy's last hidden state ─▶ linear ─▶ V    the policy's forward pass, and its trunk
    kind model   a backbone of its own ──────────▶ linear ─▶ V    a forward pass of its own, nothing shared

Shape suffixes: T sampled tokens of a row, B sequences of a row, N = T + B, H hidden size.
"""

from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh

from slipstream.algorithms import Counts, ValueLoss, value_loss
from slipstream.config import CriticConfig, LearnerConfig, RunConfig
from slipstream.learner.batches.rows import Row
from slipstream.learner.policy.model import Policy, autocast, whole
from slipstream.learner.policy.value_model import ValueModel, load_value_model
from slipstream.learner.ranks.sharding import checkpoint_activations
from slipstream.learner.training.schedule import learning_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """What a critic says of one row, in units of reward, float32 at least."""

    before_T: torch.Tensor
    """Before each sampled token, predicted from the token that it follows."""
    after_B: torch.Tensor
    """After the last token of each sequence."""


class Critic:
    """A value model and its own AdamW.

    Invariant: of the policy it changes nothing, save the gradient of the trunk that a head shares with it,
    and that only with a loss coefficient above 0 and after the warm-up.
    """

    def __init__(
        self, module: ValueModel, *, settings: CriticConfig, learner: LearnerConfig, dtype: torch.dtype
    ) -> None:
        self.module = module
        self.optimizer = torch.optim.AdamW(
            module.parameters(),
            lr=settings.peak(learner.learning_rate),
            betas=learner.betas,
            weight_decay=learner.weight_decay,
        )
        self.warming = False
        """Whether only the critic trains in this step."""
        self._settings = settings
        self._learner = learner
        self._dtype = dtype

    @property
    def reads_policy(self) -> bool:
        """Whether `values` needs the policy's hidden states."""
        return self.module.backbone is None

    def begin_step(self, step: int) -> None:
        """Take the learning rate of the step that makes version `step` (1 is the first): the critic's own
        peak over the learner's schedule. See whether the policy trains in it."""
        learner = self._learner
        peak = self._settings.peak(learner.learning_rate)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, peak=peak, steps=learner.steps, schedule=learner.schedule)
        self.warming = step <= self._settings.warmup_steps

    def values(self, row: Row, hidden_NH: torch.Tensor | None, *, share: float = 0.0) -> Values:
        """What the critic says of a row, with gradient where that is on.

        `hidden_NH`: for a head, the policy's at `value_positions`; of its gradient a `share` goes on into the
        trunk.
        """
        read_NH = None if hidden_NH is None else _shared(hidden_NH, share)
        with autocast(row.tokens_R.device, self._dtype):
            value_N = self.module(
                read_NH, row.tokens_R, row.positions_R, row.attention_RR, value_positions(row)
            )
        tokens = row.predictors_T.shape[0]
        return Values(before_T=value_N[:tokens], after_B=value_N[tokens:])

    def look(self, row: Row, hidden_NH: torch.Tensor | None) -> Values:
        """The values without gradient."""
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
        """The value loss of a row over the counts of its whole minibatch, with gradient.

        `old`, `returns_T`: as they were before the first update of the batch. `trains_T`: tokens that are not
        over age.
        """
        assert old is not None, "a critic looks at every row before it trains on one"
        assert returns_T is not None, "credit is assigned before anything trains"
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
        """Scale the gradient down to learner.max_grad_norm, by itself; returns the norm before."""
        limit = self._learner.max_grad_norm
        return float(whole(torch.nn.utils.clip_grad_norm_(self.module.parameters(), limit)))

    def named_state(self) -> dict[str, torch.Tensor]:
        """Weights and moments for a checkpoint, by `module/NAME` and `optimizer/KEY/NAME`."""
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter in self.module.named_parameters():
            tensors[f"module/{name}"] = parameter.detach()
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{key}/{name}"] = value
        return tensors


def load_critic(config: RunConfig, policy: Policy, mesh: DeviceMesh | None = None) -> Critic | None:
    """The critic that the run's algorithm needs, as it is before the first step; None where it needs none.

    `mesh`: over which it is sharded, if that is over several ranks. Errors: those of `load_value_model`.
    """
    settings = config.learner.critic
    if settings is None:
        return None
    module = load_value_model(settings, config, policy, mesh)
    if config.learner.activation_checkpointing and module.backbone is not None:
        checkpoint_activations(module.backbone)
    return Critic(module, settings=settings, learner=config.learner, dtype=policy.dtype)


def value_positions(row: Row) -> torch.Tensor:
    """The tokens of a row [N] from which a critic predicts: those before sampled ones, and the last ones."""
    return torch.cat([row.predictors_T, row.ends_B])


def _shared(hidden_NH: torch.Tensor, share: float) -> torch.Tensor:
    """The same numbers, of whose gradient only a share goes on."""
    still_NH = hidden_NH.detach()
    return still_NH if share == 0 else still_NH + share * (hidden_NH - still_NH)
