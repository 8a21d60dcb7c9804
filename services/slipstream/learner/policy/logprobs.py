"""Logprobs of chosen tokens, and entropies, from hidden states, a chunk of the vocabulary at a time.

Only [positions × chunk] logits exist at once. The forward pass folds chunk after chunk into a running
maximum and running sums (online softmax: Milakov and Gimelshein, arXiv:1805.02867); the backward pass makes
the same logits once more, turns them in place into their gradient, and multiplies. So beside the gradients
themselves it holds a few [T, H] tensors, and the gradient of each part of the head is written once, summed
over all positions in float32, in whatever dtype the head has.

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
A GPU wants work enough for each kernel; there the size is not measured."""
PLAIN = LogitTransform()


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """What the head says at each position, float32 (float64 for a float64 model), in nats."""

    logprobs_T: Tensor
    """Of the target token."""
    entropy_T: Tensor
    """Of the whole distribution; a constant unless its gradient was asked for."""
    others_TK: torch.Tensor | None = None
    """Logprobs of further tokens at each position, where they were asked for."""
    constants_TK: torch.Tensor | None = None
    """The same without gradient, of tokens that were asked for as constants."""
    hidden_NH: torch.Tensor | None = None
    """Last hidden states at the positions for which a critic asked, in the dtype of the forward pass."""
    routed: Routed | None = None
    """Experts and their router's logprobs, where the forward pass was asked to write them down."""


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
    """log softmax(logits / temperature) at the targets, and the entropy of that softmax.

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
    """Of hidden states and bias before they meet the head."""
    cap: float | None
    """The soft cap over the temperature."""
    chunk: int
    entropy_gradient: bool
    graph: bool
    """Whether there may be a backward pass."""


class _Head(torch.autograd.Function):
    """Gradients are first ones only: differentiating the backward pass is an error.

    Where the head is frozen and only the logprobs have a gradient, that of the hidden states is known up to a
    factor in the forward pass, which keeps it: then no logits are made twice.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_TH: Tensor, head_VH: Tensor, bias_V: Tensor | None, targets_T: Tensor, how: _How
    ) -> tuple[Tensor, Tensor]:
        ctx.how = how
        head_trains = any(ctx.needs_input_grad[1:3])
        early = how.graph and ctx.needs_input_grad[0] and not head_trains and not how.entropy_gradient
        with torch.autocast(hidden_TH.device.type, enabled=False):
            found = _softmax(hidden_TH, head_VH, bias_V, targets_T, how, pull=early)
            log_sum_T = found.sum_T.log()
            logprobs_T = found.chosen_T - found.peak_T - log_sum_T
            entropy_T = log_sum_T - found.spread_T / found.sum_T
            if found.pull_TH is not None:
                mean_TH = found.pull_TH.div_(found.sum_T[:, None])
                own_TH = head_VH[targets_T]
                if how.cap is not None:
                    own_TH = own_TH * capped_slope(found.chosen_T, how.cap)[:, None]
                ctx.save_for_backward(mean_TH.neg_().add_(own_TH).div_(how.divisor))
            else:
                ctx.save_for_backward(
                    hidden_TH, head_VH, bias_V, targets_T, found.peak_T, log_sum_T, entropy_T
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
            found = _gradients(ctx, by_logprob_T, by_entropy_T if ctx.how.entropy_gradient else None)
        return (*found, None, None)


def _softmax(
    hidden_TH: Tensor, head_VH: Tensor, bias_V: Tensor | None, targets_T: Tensor, how: _How, *, pull: bool
) -> Softmax:
    scaled_TH = hidden_TH.to(_dtype(hidden_TH)) / how.divisor
    zero_T = scaled_TH.new_zeros(scaled_TH.shape[0])
    lowest_T = torch.full_like(zero_T, torch.finfo(zero_T.dtype).min)
    found = Softmax(lowest_T, zero_T, zero_T, zero_T, torch.zeros_like(scaled_TH) if pull else None)
    absorb, _ = functions_of(scaled_TH.device.type)
    for start, head_CH, bias_C in _chunks(head_VH, bias_V, how, scaled_TH.dtype):
        found = absorb(found, scaled_TH, head_CH, bias_C, targets_T - start, how.cap)
    return found


def _gradients(
    ctx: Any, by_logprob_T: Tensor, by_entropy_T: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Of hidden states, head and bias, each where it is needed."""
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
    """The positions that have a gradient, None for all, and what is known of them.

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
    """First token, head and scaled bias of each chunk, of even sizes."""
    vocabulary = head_VH.shape[0]
    size = -(-vocabulary // -(-vocabulary // how.chunk))
    for start in range(0, vocabulary, size):
        part = slice(start, start + size)
        bias_C = None if bias_V is None else bias_V[part].to(dtype) / how.divisor
        yield start, head_VH[part].to(dtype), bias_C
