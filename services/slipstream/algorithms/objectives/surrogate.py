"""Input and output of an objective: the tokens, and the surrogate J of each token with its gradient.

Suffixes: _T packed tokens, _B sequences. l logprobs, a those of the anchor, A advantages, mu the policy that
sampled. Objectives state the slope g next to their J, so no tensor carries a gradient, except in the tokens
of an objective of the user's.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.algorithms import microbatch, ratios, segments


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens(microbatch.Microbatch):
    """A microbatch as its loss reads it.

    All numbers are constants in float32 or wider, finite, and 0 outside the mask; gamma is 1 there. Choices
    are bool, and there is one advantage for each token.
    """

    log_ratio_T: Tensor
    """l - a, nats, not clamped."""
    drift_T: Tensor | None
    """l - log mu; None without rollout logprobs."""
    log_rho_T: Tensor | None
    """log prox - log mu; the drift where no correction reads the old logprobs."""
    trained_T: Tensor
    """Bool: in the mask and not over age."""
    trains_whole_mask: bool
    """No token is over age: trained_T is the mask."""

    @property
    def advantages_T(self) -> Tensor:
        """A."""
        return self.advantages

    @property
    def lengths_B(self) -> Tensor:
        """Tokens of each sequence in the mask."""
        return self.layout.lengths_B.to(self.logprobs_T)

    @property
    def z_T(self) -> Tensor:
        """z = l - a, clamped to +-20."""
        return ratios.bounded(self.log_ratio_T)

    @property
    def ratio_has_gradient_T(self) -> Tensor:
        """Bool: z is inside the clamp, past which exp(z) no longer moves with l."""
        return self.log_ratio_T.abs() <= ratios.LOG_RATIO_LIMIT

    @property
    def log_ratio_ref_T(self) -> Tensor | None:
        """l - log ref; None without a reference."""
        return None if self.ref_logprobs_T is None else self.logprobs_T - self.ref_logprobs_T

    @property
    def log_ratio_teacher_T(self) -> Tensor | None:
        """log teacher - l; None without a teacher."""
        return None if self.taught is None else self.taught.logprobs_T - self.logprobs_T

    def keep(self, value_T: Tensor) -> Tensor:
        """Return value_T [T], or [T, K], with 0 where a token does not train."""
        return self.layout.keep(value_T) if self.trains_whole_mask else ratios.keep(value_T, self.trained_T)

    def sequence_sum(self, value_T: Tensor) -> Tensor:
        """Sum of a value over the mask of each sequence, [B]."""
        return segments.segment_sum(value_T * self.mask_T, self.sequence_ids_T, self.layout.sequences)

    def sequence_mean(self, value_T: Tensor) -> Tensor:
        """Mean of a value over the mask of each sequence, [B]; 0 for an empty one."""
        value_T = value_T * self.mask_T
        count_B = self.lengths_B.to(value_T.dtype)
        return segments.segment_mean(value_T, self.sequence_ids_T, self.layout.sequences, count_B)

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
