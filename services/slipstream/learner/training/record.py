"""The numbers of a training step: accumulated row by row, and reduced over ranks in the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from slipstream.algorithms import Tally, finalize, finalize_by_staleness, finalize_values, merge, summarize
from slipstream.algorithms.metrics import REDUCED_BY_MAX
from slipstream.learner.ranks.ranks import Ranks
from slipstream.learner.training.model_flops import ModelFlops
from slipstream.learner.training.update import GradientNorms
from slipstream.samples.token_values import TokenValues
from slipstream.telemetry.metrics import RATIOS


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of a step, equal on all ranks.

    `updates` optimizer steps were made, `bad` ones skipped because they were not finite. `metrics` are those
    of the loss and of the batch's diversity, `by_staleness` those of the loss by the age of tokens. Tokens,
    staleness and ratios count only the tokens that trained, not those over age. Each epoch counts its tokens
    again, and the metrics are over all epochs.
    """

    loss: float
    gradient_norm: float
    learning_rate: float
    updates: int
    bad: int
    tokens: int
    metrics: Mapping[str, float]
    by_staleness: Mapping[str, Mapping[str, float]]
    staleness_mean: float
    staleness_max: int
    staleness_histogram: Mapping[str, int]
    staleness_counts: Mapping[float, int]
    ratio_counts: Mapping[float, int]
    model_flops: float = 0.0
    """Of all ranks; see slipstream.learner.training.model_flops."""
    too_long: int = 0
    """Sequences that were left out, because they do not fit into a row."""
    collapsing: bool = False
    """Whether entropy, distinct n-grams and the spread of rewards fell together."""
    token_values: TokenValues | None = None
    """What the step made of each token; None in a run that stores no completions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MinibatchLosses:
    """The losses of one minibatch over all ranks, and whether any of its tokens trains."""

    policy: float
    critic: float
    trains: bool


@dataclass(slots=True, kw_only=True)
class Record:
    """Accumulates the numbers of one step on one rank; `result` reduces them over ranks."""

    rate: float
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    critic_norms: list[float] = field(default_factory=list)
    updates: int = 0
    bad: int = 0
    too_long: int = 0
    tally: Tally
    """The metrics of the policy loss; `policy_loss` adds each row to it."""
    flops: ModelFlops
    """FLOPs of the policy by token, position and pair."""
    _size_3: torch.Tensor | float = 0.0
    _values: list[Mapping[str, torch.Tensor]] = field(default_factory=list)
    _ages: list[torch.Tensor] = field(default_factory=list)
    _ratios: list[torch.Tensor] = field(default_factory=list)
    _trained: list[torch.Tensor] = field(default_factory=list)

    def add_minibatch(self, losses: MinibatchLosses, norms: GradientNorms) -> None:
        """Add the losses and the gradient norms of one minibatch."""
        self.losses.append(losses.policy)
        self.norms.append(norms.policy)
        if norms.critic is not None:
            self.critic_norms.append(norms.critic)

    def add_row(
        self,
        *,
        staleness_T: torch.Tensor,
        ratios_T: torch.Tensor,
        trained_T: torch.Tensor,
        size_3: torch.Tensor,
        values: Mapping[str, torch.Tensor],
    ) -> None:
        """Add age and ratio of the tokens of one row, the mask of those that trained, its size, and the
        sums of the value loss.

        The tensors stay on the device until the step is over, so that the host does not wait for each row.
        """
        self._ages.append(staleness_T)
        self._ratios.append(ratios_T)
        self._trained.append(trained_T)
        self._size_3 = self._size_3 + size_3
        self._values = [merge([*self._values, values])]

    def result(self, ranks: Ranks) -> StepResult:
        """Reduce the record over all ranks. All ranks must call."""
        staleness_T = ranks.gather(self._of_trained(self._ages, dtype=torch.int64))
        summary = summarize(staleness_T, torch.ones_like(staleness_T))
        ages, amounts = staleness_T.unique(return_counts=True)
        sums = {
            name: (ranks.max if name in REDUCED_BY_MAX else ranks.sum)(value)
            for part in ([self.tally.sums(), *self._values] if self._ages else [])
            for name, value in part.items()
        }
        return StepResult(
            loss=sum(self.losses) / len(self.losses),
            gradient_norm=sum(self.norms) / len(self.norms),
            learning_rate=self.rate,
            updates=self.updates,
            bad=self.bad,
            tokens=summary.tokens,
            metrics=self._metrics(sums),
            by_staleness=finalize_by_staleness(sums) if sums else {},
            staleness_mean=summary.mean,
            staleness_max=summary.largest,
            staleness_histogram=summary.histogram,
            staleness_counts=dict(zip(ages.tolist(), amounts.tolist(), strict=True)),
            ratio_counts=_ratio_counts(self._of_trained(self._ratios, dtype=torch.float32), ranks)
            if self._ratios
            else {},
            model_flops=self.flops.of(*self._size(ranks)),
            too_long=self.too_long,
        )

    def _size(self, ranks: Ranks) -> tuple[float, float, float]:
        """Return the tokens, sampled tokens and pairs of tokens in the rows of all ranks."""
        own_3 = self._size_3.cpu() if isinstance(self._size_3, torch.Tensor) else torch.zeros(3).double()
        tokens, positions, pairs = ranks.sum(own_3).tolist()
        return tokens, positions, pairs

    def _of_trained(self, rows: Sequence[torch.Tensor], *, dtype: torch.dtype) -> torch.Tensor:
        """Return the values of the tokens that trained, on the host. `dtype` is that of an empty result."""
        if not rows:
            return torch.zeros(0, dtype=dtype)
        return torch.cat(list(rows))[torch.cat(self._trained)].cpu()

    def _metrics(self, sums: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Return the metrics of the policy loss, and of the value loss with a critic."""
        metrics = finalize(sums) | finalize_values(sums) if sums else {}
        if self.critic_norms:
            metrics["critic_gradient_norm"] = sum(self.critic_norms) / len(self.critic_norms)
        return metrics


def _ratio_counts(ratios_T: torch.Tensor, ranks: Ranks) -> dict[float, int]:
    """Return the number of tokens in each bucket of the ratio histogram, by the mean ratio of the bucket."""
    finite_T = ratios_T[ratios_T.isfinite()].double()
    bucket_T = torch.bucketize(finite_T, torch.tensor(RATIOS, dtype=torch.float64))
    amounts = ranks.sum(torch.bincount(bucket_T, minlength=len(RATIOS) + 1))
    totals = ranks.sum(torch.bincount(bucket_T, weights=finite_T, minlength=len(RATIOS) + 1))
    pairs = zip(totals.tolist(), amounts.tolist(), strict=True)
    return {total / amount: amount for total, amount in pairs if amount}
