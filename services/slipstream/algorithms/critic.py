"""Value loss of a critic, its explained variance, and the whitening of its advantages.

Suffixes: _T packed tokens, _B sequences.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.algorithms import aggregation, checks, ratios, segments, sloped
from slipstream.algorithms.spec.checks import require_positive

CRITIC = "critic"
"""The name of the sums of a value loss beside those of the policy loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLoss:
    """The loss, with gradient, and the sums from which `finalize_values` computes its metrics.

    With the same counts, losses and their gradients add up over microbatches and ranks.
    """

    loss: Tensor
    """Scalar, to be minimised."""
    sums: dict[str, Tensor]
    """One entry, CRITIC: sums [7] without gradient that add up; see `finalize_values`."""


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    counts: aggregation.Counts | None = None,
    clip_range: float | None = 0.2,
) -> ValueLoss:
    """Compute L = 1/N sum_t max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2) / 2.

    The gradient by v is (v - R) / N, and 0 where the clipped term is the larger one: there v has moved
    further than c from v_old, towards R. See Proximal Policy Optimization Algorithms, arXiv:1707.06347: the
    authors' code clips values so, the paper does not say it.
    values: [T], with gradient. old_values, returns: [T], constants. Units of reward.
    mask: [T], 1 where the token trains; elsewhere anything, NaN included, is ignored. A token that is masked
        for its age stays in counts.
    counts: of the whole optimizer batch, whose tokens are N; default: those of the mask.
    clip_range: c, above 0; None does not clip.
    Raises ValueError for mismatched shapes, or counts smaller than the mask.
    """
    mask_T = _check(values, old_values, returns, mask, counts, clip_range)
    tokens = int(mask_T.sum()) if counts is None else counts.tokens
    with torch.no_grad():
        wide = torch.promote_types(values.dtype, torch.float32)
        v_T, old_T, return_T = (
            ratios.keep(x.detach().to(wide), mask_T) for x in (values, old_values, returns)
        )
        plain_T = (v_T - return_T).square()
        near_T = v_T if clip_range is None else v_T.clamp(old_T - clip_range, old_T + clip_range)
        clipped_T = (near_T - return_T).square()
        by_clip_T = clipped_T > plain_T
        loss_T = 0.5 * torch.maximum(plain_T, clipped_T)
        slope_T = torch.where(by_clip_T, 0.0, v_T - return_T) / max(tokens, 1)
        sums = _sums(mask_T, loss_T, by_clip_T, return_T, return_T - old_T)
    loss = sloped.with_slope(loss_T.sum(dtype=torch.float64) / max(tokens, 1), values, slope_T)
    return ValueLoss(loss=loss, sums={CRITIC: sums})


def finalize_values(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Turn the sums of all microbatches and ranks into metrics; none where no critic trained.

    value_loss: mean over the tokens that trained. value_clip_fraction: share of them whose gradient
    the clip sets to 0. explained_variance: 1 - Var(R - v_old) / Var(R), 1 for a perfect critic, 0 for a
    constant, below 0
    for a worse one; NaN where all returns are equal.
    """
    if CRITIC not in sums:
        return {}
    tokens, loss, clipped, total, square, error, error_square = sums[CRITIC].tolist()
    if not tokens:
        return {"value_loss": math.nan, "explained_variance": math.nan, "value_clip_fraction": math.nan}
    spread = square - total**2 / tokens
    left = error_square - error**2 / tokens
    equal = spread <= 1e-12 * max(square, 1e-12)  # a smaller variance is rounding error
    return {
        "value_loss": loss / tokens,
        "explained_variance": math.nan if equal else 1 - left / spread,
        "value_clip_fraction": clipped / tokens,
    }


def final_rewards(rewards: Tensor, sequence_ids: Tensor) -> Tensor:
    """Return each sequence's reward [B] at its last token and 0 elsewhere, float64 [T]: the rewards of `gae`.

    sequence_ids: [T], 0, ..., B - 1 in order. Raises ValueError for mismatched shapes, or a reward that
    is not finite.
    """
    sequences = checks.count_sequences(sequence_ids)
    checks.require_shape("rewards", rewards, (sequences,), "the sequences of sequence_ids")
    if not bool(rewards.isfinite().all()):
        raise ValueError("rewards: got a number that is not finite, needs finite ones")
    last_B = torch.bincount(sequence_ids, minlength=sequences).cumsum(0) - 1
    return segments.segment_sum(rewards.detach().to(torch.float64), last_B, sequence_ids.shape[0])


def moments(values: Tensor, mask: Tensor) -> Tensor:
    """Return count, sum and sum of squares of values [T] where mask [T] is 1, float64 [3].

    They add up over microbatches and ranks.
    """
    checks.require_shape("mask", mask, tuple(values.shape), "values")
    value_T, mask_T = ratios.keep(values.detach().double(), mask.bool()), mask.bool()
    return torch.stack([mask_T.sum().double(), value_T.sum(), value_T.square().sum()])


def whiten(values: Tensor, batch_moments: Tensor, *, epsilon: float) -> Tensor:
    """Return (values - mean) / (std + epsilon), [T] of the dtype of values, with ddof 1.

    batch_moments: of the whole batch, see `moments`. Fewer than two tokens have no deviation, and
    get 0.
    """
    count, total, square = batch_moments.tolist()
    if count < 2:
        return torch.zeros_like(values)
    mean = total / count
    variance = max(square - total * mean, 0.0) / (count - 1) if math.isfinite(square) else math.nan
    white_T: Tensor = (values.double() - mean) / (math.sqrt(variance) + epsilon)
    return white_T.to(values.dtype)


def _check(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    counts: aggregation.Counts | None,
    clip_range: float | None,
) -> Tensor:
    """Return the mask as bool."""
    checks.require_floating("values", values)
    if values.ndim != 1:
        raise ValueError(f"values: got shape {list(values.shape)}, needs packed tokens [T]")
    for name, tensor in (("old_values", old_values), ("returns", returns), ("mask", mask)):
        checks.require_shape(name, tensor, tuple(values.shape), "values")
    checks.require_mask("mask", mask)
    if clip_range is not None:
        require_positive("clip_range (None does not clip)", clip_range)
    mask_T = mask.bool()
    if counts is not None and counts.tokens < int(mask_T.sum()):
        raise ValueError(
            f"counts: got {counts.tokens} tokens, and this microbatch alone has {int(mask_T.sum())}; needs "
            "those of the whole optimizer batch"
        )
    return mask_T


def _sums(mask_T: Tensor, loss_T: Tensor, by_clip_T: Tensor, return_T: Tensor, error_T: Tensor) -> Tensor:
    return_T, error_T = return_T.double(), error_T.double()
    each = (mask_T, loss_T, by_clip_T & mask_T, return_T, return_T.square(), error_T, error_T.square())
    return torch.stack([part_T.sum(dtype=torch.float64) for part_T in each])
