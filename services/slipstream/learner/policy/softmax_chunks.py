"""The softmax over a vocabulary in chunks: its running sums, and its gradient by the products.

A product is that of the scaled hidden states and a row of the head, plus its bias. It is the logit; in a
soft-capped model, logit = cap · tanh(product), with the derivative cap − logit² / cap.

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
"""Its exp is 0 in every floating type. Differences of maxima are clamped to it, to avoid 0 · inf."""


class Softmax(NamedTuple):
    """The softmax over the chunks so far. Sums are relative to exp(peak)."""

    peak_T: Tensor
    """Largest logit."""
    sum_T: Tensor
    """Σ exp(logit − peak)."""
    spread_T: Tensor
    """Σ exp(logit − peak) (logit − peak)."""
    chosen_T: Tensor
    """Logit of the target, after its chunk."""
    pull_TH: Tensor | None
    """Σ exp(logit − peak) · ∂ logit / ∂ product · head; None if not needed."""


class Slopes(NamedTuple):
    """The positions that have a gradient. With z = logit − peak, the gradient of the loss by a logit is
    exp(z) (base + tilt z), plus `by_logprob` at the target."""

    scaled_TH: Tensor
    targets_T: Tensor
    peak_T: Tensor
    by_logprob_T: Tensor
    base_T: Tensor
    tilt_T: Tensor | None
    cap: float | None
    """Largest absolute logit of a soft-capped softmax."""


def absorb(
    softmax: Softmax,
    scaled_TH: Tensor,
    head_CH: Tensor,
    bias_C: Tensor | None,
    local_T: Tensor,
    cap: float | None = None,
) -> Softmax:
    """Return the softmax with one more chunk; `local_T` are the targets, counted from its first token."""
    logits_TC = _logits(scaled_TH, head_CH, bias_C, cap)
    bend_TC = None if cap is None or softmax.pull_TH is None else capped_slope(logits_TC, cap)
    inside_T, index_T1 = _in_chunk(local_T, head_CH.shape[0])
    chosen_T = torch.where(inside_T, logits_TC.gather(1, index_T1).squeeze(1), softmax.chosen_T)
    peak_T = torch.maximum(softmax.peak_T, logits_TC.amax(dim=1))
    step_T = (softmax.peak_T - peak_T).clamp(min=LEAST_FADE)
    fade_T = step_T.exp()
    below_TC = logits_TC.sub_(peak_T[:, None])
    share_TC = below_TC.exp()
    spread_T = fade_T * (softmax.spread_T + step_T * softmax.sum_T) + below_TC.mul_(share_TC).sum(dim=1)
    sum_T = fade_T * softmax.sum_T + share_TC.sum(dim=1)
    pull_TH = None
    if softmax.pull_TH is not None:
        pulling_TC = share_TC if bend_TC is None else bend_TC.mul_(share_TC)
        pull_TH = torch.addmm(softmax.pull_TH * fade_T[:, None], pulling_TC, head_CH)
    return Softmax(peak_T, sum_T, spread_T, chosen_T, pull_TH)


def slope(rows: Slopes, head_CH: Tensor, bias_C: Tensor | None, local_T: Tensor) -> Tensor:
    """Return the gradient [T, C] of the loss by the products of one chunk."""
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
    """Return the derivative of soft-capped logits by their products, in the shape of the logits."""
    return cap - logits.square() / cap


def _logits(scaled_TH: Tensor, head_CH: Tensor, bias_C: Tensor | None, cap: float | None) -> Tensor:
    products_TC = torch.nn.functional.linear(scaled_TH, head_CH, bias_C)
    return products_TC if cap is None else products_TC.tanh_().mul_(cap)


def _in_chunk(local_T: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return whether each target is in the chunk, and its column there [T, 1]; any column if it is not."""
    return (local_T >= 0) & (local_T < size), local_T.clamp(0, size - 1)[:, None]


@cache
def functions_of(device: str) -> tuple[Callable[..., Softmax], Callable[..., Tensor]]:
    """Return `absorb` and `slope`, compiled on CUDA."""
    if device != "cuda":
        return absorb, slope
    return torch.compile(absorb, dynamic=True), torch.compile(slope, dynamic=True)
