"""The critic: the value of the state before each sampled token, and how that value function is trained.

    kind head    the policy's last hidden state ─▶ linear ─▶ V    the policy's forward pass, and its trunk
    kind model   a backbone of its own ──────────▶ linear ─▶ V    a forward pass of its own, nothing shared

Shape suffixes: T sampled tokens of a row, B sequences of a row, N = T + B, H hidden size.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from slipstream.algorithms import Counts, ValueLoss, value_loss
from slipstream.config import CriticConfig, LearnerConfig, RunConfig
from slipstream.learner.batch import Row
from slipstream.learner.model import Policy, hidden_states
from slipstream.learner.schedule import learning_rate
from slipstream.learner.value_model import ValueModel, load_value_model

WEIGHTS, MOMENTS = "module", "optimizer"


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
        if self.reads_policy:
            assert hidden_NH is not None, "a head reads the policy's hidden states"
            value_N = self.module(_shared(hidden_NH, share))
        else:
            value_N = self.module(self._own_hidden(row))
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
        return float(torch.nn.utils.clip_grad_norm_(self.module.parameters(), limit))

    def named_state(self) -> dict[str, torch.Tensor]:
        """Weights and moments for a checkpoint, by `module/NAME` and `optimizer/KEY/NAME`."""
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter in self.module.named_parameters():
            tensors[f"{WEIGHTS}/{name}"] = parameter.detach()
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{MOMENTS}/{key}/{name}"] = value
        return tensors

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore what `named_state` gave. Errors: ValueError when that is of another critic."""
        own = {f"{WEIGHTS}/{name}": parameter for name, parameter in self.module.named_parameters()}
        saved = {key: value.shape for key, value in tensors.items() if key.startswith(f"{WEIGHTS}/")}
        if saved != {key: parameter.shape for key, parameter in own.items()}:
            raise ValueError(
                "the critic of the checkpoint has other weights than that of learner.critic; set its kind "
                "and path back, or start a new run"
            )
        for key, parameter in own.items():
            parameter.data.copy_(tensors[key])
            self._load_moments(parameter, key.partition("/")[2], tensors)

    def _load_moments(
        self, parameter: torch.nn.Parameter, name: str, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        parts = {tuple(key.split("/", 2)): value for key, value in tensors.items()}
        state = {part[1]: value for part, value in parts.items() if part[0] == MOMENTS and part[2] == name}
        if state:
            on_device = {key: value.to(parameter.device, copy=True) for key, value in state.items()}
            self.optimizer.state[parameter] = {**on_device, "step": state["step"].cpu().clone()}

    def _own_hidden(self, row: Row) -> torch.Tensor:
        hidden_RH = hidden_states(
            self.module.backbone,
            row.tokens_R,
            row.positions_R,
            attention_RR=row.attention_RR,
            dtype=self._dtype,
        )
        return hidden_RH[value_positions(row)]


def load_critic(config: RunConfig, policy: Policy) -> Critic | None:
    """The critic that the run's algorithm needs, as it is before the first step; None where it needs none.

    Errors: those of `load_value_model`.
    """
    settings = config.learner.critic
    if settings is None:
        return None
    module = load_value_model(settings, config, policy)
    return Critic(module, settings=settings, learner=config.learner, dtype=policy.dtype)


def value_positions(row: Row) -> torch.Tensor:
    """The tokens of a row [N] from which a critic predicts: those before sampled ones, and the last ones."""
    return torch.cat([row.predictors_T, row.ends_B])


def _shared(hidden_NH: torch.Tensor, share: float) -> torch.Tensor:
    """The same numbers, of whose gradient only a share goes on."""
    still_NH = hidden_NH.detach()
    return still_NH if share == 0 else still_NH + share * (hidden_NH - still_NH)
