"""Input and output of an objective: the tokens, and the surrogate J of each token with its gradient.

Suffixes: _T packed tokens, _B sequences, _K tokens of the vocabulary. Objectives state the slope g next
to their J, so no tensor carries a gradient, except in the tokens of an objective of the user's.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.algorithms.ratios import LOG_RATIO_LIMIT, bounded
from slipstream.algorithms.segments import segment_mean, segment_sum


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK:
    """Logprobs of mu's K likeliest tokens at each position, for the top-K divergences of DPPO."""

    logprobs_TK: Tensor
    """Under the current policy, nats."""
    rollout_logprobs_TK: Tensor
    """Under the policy that sampled, nats."""
    sampled_TK: Tensor
    """Bool: which of them is the sampled token; none in a row where it is not among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The tokens of one packed microbatch: finite, and 0 outside the mask."""

    logprobs_T: Tensor
    """l, nats."""
    log_ratio_T: Tensor
    """l - a, nats, not clamped."""
    advantages_T: Tensor
    """A."""
    mask_T: Tensor
    """Bool: the tokens that train; tokens over age included, whose weight is 0."""
    sequence_ids_T: Tensor
    lengths_B: Tensor
    """Tokens of each sequence in the mask."""
    router_shift_T: Tensor | None = None
    """exp(-mean |log router_new - log router_old|), for RSPO."""
    top_k: TopK | None = None

    @property
    def z_T(self) -> Tensor:
        """z = l - a, clamped to +-20."""
        return bounded(self.log_ratio_T)

    @property
    def ratio_has_gradient_T(self) -> Tensor:
        """Bool: z is inside the clamp, past which exp(z) no longer moves with l."""
        return self.log_ratio_T.abs() <= LOG_RATIO_LIMIT

    def sequence_sum(self, value_T: Tensor) -> Tensor:
        """Sum of a value over the mask of each sequence, [B]."""
        return segment_sum(value_T * self.mask_T, self.sequence_ids_T, self.lengths_B.shape[0])

    def sequence_mean(self, value_T: Tensor) -> Tensor:
        """Mean of a value over the mask of each sequence, [B]; 0 for an empty one."""
        value_T = value_T * self.mask_T
        count_B = self.lengths_B.to(value_T.dtype)
        return segment_mean(value_T, self.sequence_ids_T, self.lengths_B.shape[0], count_B)

    def of_token(self, value_B: Tensor) -> Tensor:
        """Give each token the value of its sequence, [T]."""
        return value_B[self.sequence_ids_T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """The surrogate of each token: J to be maximised, dJ/dl = g = weight A, and what the metrics count."""

    value_T: Tensor
    """J."""
    weight_T: Tensor
    """g / A, the factor by which the objective weighs the advantage."""
    log_ratio_T: Tensor
    """The log ratio that the objective bounds, clamped to +-20: of the token, or of its sequence."""
    below_T: Tensor
    """Ratio under the band."""
    above_T: Tensor
    """Ratio over the band."""
    clipped_low_T: Tensor
    """The lower end took effect: no gradient, or for cispo a raised weight."""
    clipped_high_T: Tensor
    """The upper end took effect: no gradient, or for cispo a capped weight."""
    damped_T: Tensor | None = None
    """A soft weight is nearly closed: SAPO's gate under 0.5, VESPO's phi under 0.05."""
    slope_T: Tensor | None = None
    """g, for an objective whose g is no multiple of A; None: g = weight A."""


def never(like_T: Tensor) -> Tensor:
    """Return [T] bool, all false."""
    return torch.zeros_like(like_T, dtype=torch.bool)
