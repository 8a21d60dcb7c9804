"""Logprobs of further tokens at each position, beside that of the target, with gradient.

The target's logprob gives the softmax: log p_k = logit_k - logit_target + log p_target. So only the logits of
these tokens are computed, for one token of each position at a time.

Shape suffixes: T positions, H hidden size, V vocabulary, K further tokens, N = K + 1 with the target.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from slipstream.config.architecture import LogitTransform


def logprobs_beside(
    hidden_TH: Tensor,
    head_VH: Tensor,
    targets_T: Tensor,
    logprobs_T: Tensor,
    ids_TK: Tensor,
    *,
    bias_V: Tensor | None,
    transform: LogitTransform,
    temperature: float,
) -> Tensor:
    """Return log softmax(logits / temperature) at ids_TK, [T, K] float32 (float64 for a float64 model).

    logprobs_T: those of `targets_T` from `selected_logprobs` with the same head, transform and temperature.
        The gradient flows back through them too.
    A few [T, H] tensors exist at a time.
    """
    ids_TN = torch.cat([targets_T[:, None], ids_TK.long()], dim=1)
    with torch.autocast(hidden_TH.device.type, enabled=False):
        products_TN: Tensor = _Products.apply(hidden_TH, head_VH, ids_TN)  # type: ignore[no-untyped-call]
        logits_TN = products_TN if bias_V is None else products_TN + bias_V[ids_TN]
        logits_TN = transform.scale * logits_TN
        if transform.soft_cap is not None:
            logits_TN = transform.soft_cap * torch.tanh(logits_TN / transform.soft_cap)
        above_TK = (logits_TN[:, 1:] - logits_TN[:, :1]) / temperature
        return above_TK + logprobs_T[:, None]


class _Products(torch.autograd.Function):
    """Products of hidden states and rows of the head, [T, N], without a [T, N, H] tensor."""

    @staticmethod
    def forward(ctx: Any, hidden_TH: Tensor, head_VH: Tensor, ids_TN: Tensor) -> Tensor:
        ctx.save_for_backward(hidden_TH, head_VH, ids_TN)
        wide_TH = _wide(hidden_TH)
        # allocated once, because small allocations between large ones fragment the heap
        products_TN = wide_TH.new_empty(ids_TN.shape)
        for column, ids_T in enumerate(ids_TN.unbind(dim=1)):
            rows_TH = head_VH[ids_T].to(wide_TH).mul_(wide_TH)
            torch.sum(rows_TH, dim=1, out=products_TN[:, column])
        return products_TN

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_TN: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        hidden_TH, head_VH, ids_TN = ctx.saved_tensors
        wide_TH = _wide(hidden_TH)
        by_hidden_TH = torch.zeros_like(wide_TH) if ctx.needs_input_grad[0] else None
        by_head_VH = wide_TH.new_zeros(head_VH.shape) if ctx.needs_input_grad[1] else None
        for by_T, ids_T in zip(by_TN.unbind(dim=1), ids_TN.unbind(dim=1), strict=True):
            if by_hidden_TH is not None:
                by_hidden_TH.addcmul_(by_T[:, None], head_VH[ids_T].to(wide_TH))
            if by_head_VH is not None:
                by_head_VH.index_add_(0, ids_T, by_T[:, None] * wide_TH)
        return (
            None if by_hidden_TH is None else by_hidden_TH.to(hidden_TH.dtype),
            None if by_head_VH is None else by_head_VH.to(head_VH.dtype),
            None,
        )


def _wide(hidden_TH: Tensor) -> Tensor:
    return hidden_TH.to(torch.promote_types(hidden_TH.dtype, torch.float32))
