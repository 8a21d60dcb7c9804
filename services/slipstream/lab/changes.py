"""How far the logprobs of tokens have moved. Suffix: _T tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from slipstream.algorithms.ratios import bounded, k3

QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change of the logprobs of some tokens, nats."""

    mean: float
    quantiles: Sequence[float]
    """At QUANTILES."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The change between two policies."""

    positive: Change | None
    """Of the tokens with a positive advantage; None without such tokens."""
    negative: Change | None
    kl: float
    """Mean of r - 1 - log r over all tokens, r = after / before, nats: an estimate of KL(before || after)."""


def changes(before_T: Tensor, after_T: Tensor, advantages_T: Tensor) -> Changes:
    """Return the change of logprobs, by the sign of the advantage."""
    change_T = after_T - before_T
    return Changes(
        positive=_change(change_T[advantages_T > 0]),
        negative=_change(change_T[advantages_T < 0]),
        kl=mean_kl(change_T),
    )


def mean_kl(change_T: Tensor) -> float:
    """Return the estimate of the divergence, nats."""
    return float(k3(bounded(change_T)).mean())


def _change(change_T: Tensor) -> Change | None:
    if not len(change_T):
        return None
    quantiles = torch.tensor(QUANTILES, dtype=change_T.dtype)
    return Change(mean=float(change_T.mean()), quantiles=change_T.quantile(quantiles).tolist())
