"""What a training step has done so far, and what it did in the end, as values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from slipstream.algorithms import (
    Tally,
    finalize,
    finalize_by_staleness,
    finalize_values,
    merge,
    summarize,
)
from slipstream.algorithms.metrics import REDUCED_BY_MAX
from slipstream.learner.ranks.ranks import Ranks
from slipstream.learner.training.model_flops import ModelFlops
from slipstream.telemetry.metrics import RATIOS


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step did. Of the optimizer steps, `updates` were made and `bad` were skipped.

    `metrics` are those of the loss and of the batch's diversity, `by_staleness` those of the loss over the
    tokens of each age. Tokens, staleness and ratios are of the tokens that trained: those over age are left
    out. Of several epochs each counts its tokens, and the metrics are over all of them.
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
    """See slipstream.learner.training.model_flops; of all ranks."""
    too_long: int = 0
    """Sequences left out because they do not fit into a row."""
    collapsing: bool = False
    """Entropy, distinct-n and the spread of rewards have fallen together."""


@dataclass(slots=True, kw_only=True)
class Record:
    """A step in the making, as one rank sees it; `result` brings the ranks together."""

    rate: float
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    critic_norms: list[float] = field(default_factory=list)
    updates: int = 0
    bad: int = 0
    too_long: int = 0
    tally: Tally
    """Of the losses of all rows; `policy_loss` adds to it."""
    flops: ModelFlops
    """Of the policy."""
    _size_3: torch.Tensor | float = 0.0
    _values: list[Mapping[str, torch.Tensor]] = field(default_factory=list)
    _ages: list[torch.Tensor] = field(default_factory=list)
    _ratios: list[torch.Tensor] = field(default_factory=list)
    _trained: list[torch.Tensor] = field(default_factory=list)

    def add(
        self,
        *,
        staleness_T: torch.Tensor,
        ratios_T: torch.Tensor,
        trained_T: torch.Tensor,
        size_3: torch.Tensor,
        values: Mapping[str, torch.Tensor],
    ) -> None:
        """One row: age and ratio of its tokens, which of them trained, its size, and the critic's sums.

        All stay on the device until the step is over, so that the host does not wait for every row.
        """
        self._ages.append(staleness_T)
        self._ratios.append(ratios_T)
        self._trained.append(trained_T)
        self._size_3 = self._size_3 + size_3
        self._values = [merge([*self._values, values])]

    def result(self, ranks: Ranks) -> StepResult:
        """The step as values, the same on every rank."""
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
        """Tokens, sampled tokens and pairs of tokens in the rows of all ranks."""
        own_3 = self._size_3.cpu() if isinstance(self._size_3, torch.Tensor) else torch.zeros(3).double()
        tokens, positions, pairs = ranks.sum(own_3).tolist()
        return tokens, positions, pairs

    def _of_trained(self, rows: Sequence[torch.Tensor], *, dtype: torch.dtype) -> torch.Tensor:
        """The numbers of all tokens that trained, on the host; of the dtype where there are no rows."""
        if not rows:
            return torch.zeros(0, dtype=dtype)
        return torch.cat(list(rows))[torch.cat(self._trained)].cpu()

    def _metrics(self, sums: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Those of the loss, and of the critic if there is one."""
        found = finalize(sums) | finalize_values(sums) if sums else {}
        if self.critic_norms:
            found["critic_gradient_norm"] = sum(self.critic_norms) / len(self.critic_norms)
        return found


def _ratio_counts(ratios_T: torch.Tensor, ranks: Ranks) -> dict[float, int]:
    """The mean of each bucket of the ratio histogram, and how many tokens are in it."""
    finite_T = ratios_T[ratios_T.isfinite()].double()
    bucket_T = torch.bucketize(finite_T, torch.tensor(RATIOS, dtype=torch.float64))
    amounts = ranks.sum(torch.bincount(bucket_T, minlength=len(RATIOS) + 1))
    totals = ranks.sum(torch.bincount(bucket_T, weights=finite_T, minlength=len(RATIOS) + 1))
    pairs = zip(totals.tolist(), amounts.tolist(), strict=True)
    return {total / amount: amount for total, amount in pairs if amount}
