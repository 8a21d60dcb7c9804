"""The softmax over a vocabulary that is seen a chunk at a time: its sums, and its gradient by the logits.

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
    """Σ exp(logit − peak) · head, where it is asked for."""


class Slopes(NamedTuple):
    """The positions that have a gradient. With z = logit − peak, that of the loss by a logit is
    exp(z) (base + tilt z), and `by_logprob` more at the target."""

    scaled_TH: Tensor
    targets_T: Tensor
    peak_T: Tensor
    by_logprob_T: Tensor
    base_T: Tensor
    tilt_T: Tensor | None


def absorb(
    found: Softmax, scaled_TH: Tensor, head_CH: Tensor, bias_C: Tensor | None, local_T: Tensor
) -> Softmax:
    """The softmax with one more chunk in it; `local_T` are the targets, counted from its first token."""
    logits_TC = torch.nn.functional.linear(scaled_TH, head_CH, bias_C)
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
        pull_TH = torch.addmm(found.pull_TH * fade_T[:, None], share_TC, head_CH)
    return Softmax(peak_T, sum_T, spread_T, chosen_T, pull_TH)


def slope(rows: Slopes, head_CH: Tensor, bias_C: Tensor | None, local_T: Tensor) -> Tensor:
    """Gradient [T, C] of the loss by the logits of one chunk."""
    below_TC = torch.nn.functional.linear(rows.scaled_TH, head_CH, bias_C).sub_(rows.peak_T[:, None])
    if rows.tilt_T is None:
        slope_TC = below_TC.exp_().mul_(rows.base_T[:, None])
    else:
        share_TC = below_TC.exp()
        slope_TC = below_TC.mul_(rows.tilt_T[:, None]).add_(rows.base_T[:, None]).mul_(share_TC)
    inside_T, index_T1 = _in_chunk(local_T, head_CH.shape[0])
    at_target_T = torch.where(inside_T, rows.by_logprob_T, 0.0)
    return slope_TC.scatter_add_(1, index_T1, at_target_T[:, None])


def _in_chunk(local_T: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Whether the target is in the chunk, and its column there [T, 1], any for those that are not."""
    return (local_T >= 0) & (local_T < size), local_T.clamp(0, size - 1)[:, None]


@cache
def functions_of(device: str) -> tuple[Callable[..., Softmax], Callable[..., Tensor]]:
    if device != "cuda":
        return absorb, slope
    return torch.compile(absorb, dynamic=True), torch.compile(slope, dynamic=True)
