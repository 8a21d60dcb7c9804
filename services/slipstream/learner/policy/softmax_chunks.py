"""The softmax over a vocabulary that is seen a chunk at a time: its sums, and its gradient by the products.

A product is that of the scaled hidden states and a row of the head, plus its bias. It is the logit itself, or
of a soft-capped model logit = cap · tanh(product), whose derivative is cap − logit² / cap.

On CUDA both functions go through torch.compile, which makes one Triton kernel of each chain of pointwise
operations and sums. Liger's fused kernels would give the logprobs of tokens with gradients, but no entropies.

Shape suffixes: T positions, H hidden size, C chunk of the vocabulary.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

LEAST_FADE = -1e4
"""exp of it is 0 in every floating type; clamped there, a step of the maximum cannot make 0 · inf."""


class Softmax(NamedTuple):
    """The softmax over the chunks seen so far. Sums are relative to exp(peak)."""

    peak_T: Tensor
    """Largest logit."""
    sum_T: Tensor
    """Σ exp(logit − peak)."""
    spread_T: Tensor
    """Σ exp(logit − peak) (logit − peak)."""
    chosen_T: Tensor
    """Logit of the target, once its chunk was seen."""
    pull_TH: Tensor | None
    """Σ exp(logit − peak) · ∂ logit / ∂ product · head, where it is asked for."""


class Slopes(NamedTuple):
    """The positions that have a gradient. With z = logit − peak, that of the loss by a logit is
    exp(z) (base + tilt z), and `by_logprob` more at the target."""

    scaled_TH: Tensor
    targets_T: Tensor
    peak_T: Tensor
    by_logprob_T: Tensor
    base_T: Tensor
    tilt_T: Tensor | None
    cap: float | None
    """Largest absolute logit of a soft-capped softmax."""


def absorb(
    found: Softmax,
    scaled_TH: Tensor,
    head_CH: Tensor,
    bias_C: Tensor | None,
    local_T: Tensor,
    cap: float | None = None,
) -> Softmax:
    """The softmax with one more chunk in it; `local_T` are the targets, counted from its first token."""
    logits_TC = _logits(scaled_TH, head_CH, bias_C, cap)
    bend_TC = None if cap is None or found.pull_TH is None else capped_slope(logits_TC, cap)
    inside_T, index_T1 = _in_chunk(local_T, head_CH.shape[0])
    chosen_T = torch.where(inside_T, logits_TC.gather(1, index_T1).squeeze(1), found.chosen_T)
    peak_T = torch.maximum(found.peak_T, logits_TC.amax(dim=1))
    step_T = (found.peak_T - peak_T).clamp(min=LEAST_FADE)
    fade_T = step_T.exp()
    below_TC = logits_TC.sub_(peak_T[:, None])
    share_TC = below_TC.exp()
    spread_T = fade_T * (found.spread_T + step_T * found.sum_T) + below_TC.mul_(share_TC).sum(dim=1)
    sum_T = fade_T * found.sum_T + share_TC.sum(dim=1)
    pull_TH = None
    if found.pull_TH is not None:
        pulling_TC = share_TC if bend_TC is None else bend_TC.mul_(share_TC)
        pull_TH = torch.addmm(found.pull_TH * fade_T[:, None], pulling_TC, head_CH)
    return Softmax(peak_T, sum_T, spread_T, chosen_T, pull_TH)


def slope(rows: Slopes, head_CH: Tensor, bias_C: Tensor | None, local_T: Tensor) -> Tensor:
    """Gradient [T, C] of the loss by the products of one chunk."""
    logits_TC = _logits(rows.scaled_TH, head_CH, bias_C, rows.cap)
    bend_TC = None if rows.cap is None else capped_slope(logits_TC, rows.cap)
    below_TC = logits_TC.sub_(rows.peak_T[:, None])
    if rows.tilt_T is None:
        slope_TC = below_TC.exp_().mul_(rows.base_T[:, None])
    else:
        share_TC = below_TC.exp()
        slope_TC = below_TC.mul_(rows.tilt_T[:, None]).add_(rows.base_T[:, None]).mul_(share_TC)
    inside_T, index_T1 = _in_chunk(local_T, head_CH.shape[0])
    at_target_T = torch.where(inside_T, rows.by_logprob_T, 0.0)
    slope_TC = slope_TC.scatter_add_(1, index_T1, at_target_T[:, None])
    return slope_TC if bend_TC is None else slope_TC.mul_(bend_TC)


def capped_slope(logits: Tensor, cap: float) -> Tensor:
    """The derivative of soft-capped logits by their products, in the shape of the logits."""
    return cap - logits.square() / cap


def _logits(scaled_TH: Tensor, head_CH: Tensor, bias_C: Tensor | None, cap: float | None) -> Tensor:
    products_TC = torch.nn.functional.linear(scaled_TH, head_CH, bias_C)
    return products_TC if cap is None else products_TC.tanh_().mul_(cap)


def _in_chunk(local_T: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Whether the target is in the chunk, and its column there [T, 1], any for those that are not."""
    return (local_T >= 0) & (local_T < size), local_T.clamp(0, size - 1)[:, None]


@cache
def functions_of(device: str) -> tuple[Callable[..., Softmax], Callable[..., Tensor]]:
    if device != "cuda":
        return absorb, slope
    return torch.compile(absorb, dynamic=True), torch.compile(slope, dynamic=True)
