"""Logprobs of chosen tokens, and entropies, from hidden states, a chunk of the vocabulary at a time.

Only [positions × chunk] logits exist at once. The forward pass accumulates a running maximum and running sums
over the chunks (online softmax: Milakov and Gimelshein, arXiv:1805.02867); the backward pass computes the
same logits again, turns them into their gradient in place, and multiplies. So beside the gradients themselves
it holds a few [T, H] tensors, and the gradient of each part of the head is written once, summed over all
positions in float32, in whatever dtype the head has.

The vocabulary is what is cut, and not the positions: then no [V, H] sum is read and written again for every
chunk, and a half-precision head is never copied to float32 as a whole.

Shape suffixes: T positions, H hidden size, V vocabulary, C chunk of the vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from slipstream.config.architecture import LogitTransform
from slipstream.learner.policy.routing import Routed
from slipstream.learner.policy.softmax_chunks import Slopes, Softmax, capped_slope, functions_of

CHUNK_BYTES = {"cpu": 16 * 2**20, "cuda": 128 * 2**20}
"""Logits of an automatic chunk. On a CPU the C library keeps blocks below 32 MiB and maps larger ones anew,
page by page, for each chunk: chunks of 8 to 24 MiB took a sixth less time forward than those of 32 to 128.
A GPU needs larger chunks, so that each kernel has enough work; that size was not measured."""
PLAIN = LogitTransform()


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """Logprobs and entropies at each position, float32 (float64 for a float64 model), in nats."""

    logprobs_T: Tensor
    """Logprob of the target token."""
    entropy_T: Tensor
    """Entropy of the whole distribution; without a gradient unless `entropy_gradient` is set."""
    others_TK: torch.Tensor | None = None
    """Logprobs of the further tokens `others_TK` of the request, with gradient."""
    constants_TK: torch.Tensor | None = None
    """Logprobs of the further tokens `constants_TK` of the request, without gradient."""
    hidden_NH: torch.Tensor | None = None
    """Last hidden states at the positions that a critic reads, in the dtype of the forward pass."""
    routed: Routed | None = None
    """Experts and their router's logprobs, if the forward pass recorded them."""


def selected_logprobs(
    hidden_TH: Tensor,
    head_VH: Tensor,
    targets_T: Tensor,
    *,
    bias_V: Tensor | None = None,
    transform: LogitTransform = PLAIN,
    temperature: float = 1.0,
    chunk: int | None = None,
    entropy_gradient: bool = False,
) -> Selected:
    """Return log softmax(logits / temperature) at the targets, and the entropy of that softmax.

    x = transform.scale · (hidden · headᵀ + bias); logits = x, or soft_cap · tanh(x / soft_cap).

    The head is applied in float32 whatever the dtypes, under autocast too. `chunk`: tokens of the vocabulary
    whose logits exist at one time; None for as many as fit in CHUNK_BYTES. Gradients come in the dtypes of
    their tensors; there are no second ones. Positions whose gradient is 0 cost nothing in the backward pass.
    Errors: ValueError for a target outside the head's vocabulary.
    """
    _check(targets_T, head_VH.shape[0])
    cap = transform.soft_cap
    how = _How(
        divisor=(cap or temperature) / transform.scale,
        cap=None if cap is None else cap / temperature,
        chunk=chunk or _chunk_for(hidden_TH),
        entropy_gradient=entropy_gradient,
        graph=torch.is_grad_enabled(),
    )
    logprobs_T, entropy_T = _Head.apply(hidden_TH, head_VH, bias_V, targets_T, how)  # type: ignore[no-untyped-call]
    return Selected(logprobs_T=logprobs_T, entropy_T=entropy_T)


def _check(targets_T: Tensor, vocabulary: int) -> None:
    if not targets_T.numel():
        return
    low, high = (int(bound) for bound in targets_T.aminmax())
    if low < 0 or high >= vocabulary:
        raise ValueError(
            f"target token {low if low < 0 else high} is outside the {vocabulary} tokens of the output head; "
            "rollout and learner must use one model and one tokenizer"
        )


def _chunk_for(hidden_TH: Tensor) -> int:
    size = torch.finfo(_dtype(hidden_TH)).bits // 8
    return max(1, CHUNK_BYTES[hidden_TH.device.type] // (size * max(hidden_TH.shape)))


def _dtype(hidden_TH: Tensor) -> torch.dtype:
    return torch.promote_types(hidden_TH.dtype, torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    divisor: float
    """Of hidden states and bias, before the product with the head."""
    cap: float | None
    """The soft cap divided by the temperature."""
    chunk: int
    entropy_gradient: bool
    graph: bool
    """Whether there may be a backward pass."""


class _Head(torch.autograd.Function):
    """Softmax of a chunked head. Second derivatives are an error.

    If the head is frozen and only the logprobs have a gradient, the forward pass already computes the
    gradient of the hidden states up to a factor, and keeps it. Then no logits are computed twice.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_TH: Tensor, head_VH: Tensor, bias_V: Tensor | None, targets_T: Tensor, how: _How
    ) -> tuple[Tensor, Tensor]:
        ctx.how = how
        head_trains = any(ctx.needs_input_grad[1:3])
        early = how.graph and ctx.needs_input_grad[0] and not head_trains and not how.entropy_gradient
        with torch.autocast(hidden_TH.device.type, enabled=False):
            softmax = _softmax(hidden_TH, head_VH, bias_V, targets_T, how, pull=early)
            log_sum_T = softmax.sum_T.log()
            logprobs_T = softmax.chosen_T - softmax.peak_T - log_sum_T
            entropy_T = log_sum_T - softmax.spread_T / softmax.sum_T
            if softmax.pull_TH is not None:
                mean_TH = softmax.pull_TH.div_(softmax.sum_T[:, None])
                own_TH = head_VH[targets_T]
                if how.cap is not None:
                    own_TH = own_TH * capped_slope(softmax.chosen_T, how.cap)[:, None]
                ctx.save_for_backward(mean_TH.neg_().add_(own_TH).div_(how.divisor))
            else:
                ctx.save_for_backward(
                    hidden_TH, head_VH, bias_V, targets_T, softmax.peak_T, log_sum_T, entropy_T
                )
        if not how.entropy_gradient:
            ctx.mark_non_differentiable(entropy_T)
        ctx.early, ctx.dtype = early, hidden_TH.dtype
        return logprobs_T, entropy_T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_logprob_T: Tensor, by_entropy_T: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.early:
            (slope_TH,) = ctx.saved_tensors
            return (by_logprob_T[:, None] * slope_TH).to(ctx.dtype), None, None, None, None
        with torch.autocast(by_logprob_T.device.type, enabled=False):
            gradients = _gradients(ctx, by_logprob_T, by_entropy_T if ctx.how.entropy_gradient else None)
        return (*gradients, None, None)


def _softmax(
    hidden_TH: Tensor, head_VH: Tensor, bias_V: Tensor | None, targets_T: Tensor, how: _How, *, pull: bool
) -> Softmax:
    scaled_TH = hidden_TH.to(_dtype(hidden_TH)) / how.divisor
    zero_T = scaled_TH.new_zeros(scaled_TH.shape[0])
    lowest_T = torch.full_like(zero_T, torch.finfo(zero_T.dtype).min)
    softmax = Softmax(lowest_T, zero_T, zero_T, zero_T, torch.zeros_like(scaled_TH) if pull else None)
    absorb, _ = functions_of(scaled_TH.device.type)
    for start, head_CH, bias_C in _chunks(head_VH, bias_V, how, scaled_TH.dtype):
        softmax = absorb(softmax, scaled_TH, head_CH, bias_C, targets_T - start, how.cap)
    return softmax


def _gradients(
    ctx: Any, by_logprob_T: Tensor, by_entropy_T: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of hidden states, head and bias; None for those that need none."""
    hidden_TH, head_VH, bias_V, *_ = ctx.saved_tensors
    wants_hidden, wants_head, wants_bias, *_ = ctx.needs_input_grad
    live, rows = _live_slopes(ctx, by_logprob_T, by_entropy_T)
    by_hidden_TH = torch.zeros_like(rows.scaled_TH) if wants_hidden else None
    by_head_VH = torch.empty_like(head_VH) if wants_head else None
    by_bias_V = torch.empty_like(bias_V) if wants_bias else None
    _, slope = functions_of(hidden_TH.device.type)
    for start, head_CH, bias_C in _chunks(head_VH, bias_V, ctx.how, rows.scaled_TH.dtype):
        slope_TC = slope(rows, head_CH, bias_C, rows.targets_T - start)
        part = slice(start, start + head_CH.shape[0])
        if by_hidden_TH is not None:
            by_hidden_TH.addmm_(slope_TC, head_CH)
        if by_head_VH is not None:
            by_head_VH[part] = slope_TC.T @ rows.scaled_TH
        if by_bias_V is not None:
            by_bias_V[part] = slope_TC.sum(dim=0) / ctx.how.divisor
    if by_hidden_TH is not None:
        by_hidden_TH = by_hidden_TH.div_(ctx.how.divisor).to(hidden_TH.dtype)
        if live is not None:
            by_hidden_TH = torch.zeros_like(hidden_TH).index_copy_(0, live, by_hidden_TH)
    return by_hidden_TH, by_head_VH, by_bias_V


def _live_slopes(ctx: Any, by_logprob_T: Tensor, by_entropy_T: Tensor | None) -> tuple[Tensor | None, Slopes]:
    """Return the positions that have a gradient, None for all, and the slopes at them.

    For p = exp(z) / sum: ∂ logprob / ∂ logit = 1[target] − p; ∂ entropy / ∂ logit = −p (log p + entropy).
    """
    hidden_TH, _, _, targets_T, peak_T, log_sum_T, entropy_T = ctx.saved_tensors
    live_T = by_logprob_T != 0 if by_entropy_T is None else (by_logprob_T != 0) | (by_entropy_T != 0)
    live = None if live_T.all() else live_T.nonzero().squeeze(1)

    def pick(rows: Tensor) -> Tensor:
        return rows if live is None else rows.index_select(0, live)

    shrink_T = log_sum_T.neg().exp()
    if by_entropy_T is None:
        base_T, tilt_T = -by_logprob_T * shrink_T, None
    else:
        base_T = -(by_logprob_T + by_entropy_T * (entropy_T - log_sum_T)) * shrink_T
        tilt_T = pick(-by_entropy_T * shrink_T)
    scaled_TH = pick(hidden_TH).to(_dtype(hidden_TH)) / ctx.how.divisor
    return live, Slopes(
        scaled_TH, pick(targets_T), pick(peak_T), pick(by_logprob_T), pick(base_T), tilt_T, ctx.how.cap
    )


def _chunks(
    head_VH: Tensor, bias_V: Tensor | None, how: _How, dtype: torch.dtype
) -> Iterator[tuple[int, Tensor, Tensor | None]]:
    """Yield first token, head and scaled bias of each chunk; chunks have about equal sizes."""
    vocabulary = head_VH.shape[0]
    size = -(-vocabulary // -(-vocabulary // how.chunk))
    for start in range(0, vocabulary, size):
        part = slice(start, start + size)
        bias_C = None if bias_V is None else bias_V[part].to(dtype) / how.divisor
        yield start, head_VH[part].to(dtype), bias_C
