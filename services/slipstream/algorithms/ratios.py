"""The importance ratio of one token, kept finite.

Suffixes: _T packed tokens.
"""

from typing import Final

import torch
from torch import Tensor

LOG_RATIO_LIMIT: Final = 20.0
"""Ratios stay within exp(-20) and exp(20). Past the limit the clamp also stops the gradient."""


def bounded(log_ratio: Tensor) -> Tensor:
    """Return a log ratio, of tokens or of sequences, clamped to +-20."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def k3(log_ratio_T: Tensor) -> Tensor:
    """Return r - 1 - log r [T], in nats and never negative.

    Over tokens sampled from a, with log r = log(b / a), its mean estimates KL(a || b).
    See Approximating KL Divergence, Schulman (2020), http://joschu.net/blog/kl-approx.html.
    """
    return torch.expm1(log_ratio_T) - log_ratio_T


def keep(value_T: Tensor, keep_T: Tensor) -> Tensor:
    """Return value_T [T], or [T, K], with 0 where keep_T [T] is false, so that no NaN passes."""
    return torch.where(keep_T if value_T.ndim == 1 else keep_T[:, None], value_T, 0.0)
