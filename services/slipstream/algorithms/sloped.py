"""A number that is known together with its derivatives, as autograd sees it.

Suffixes: _T packed tokens.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def with_slope(value: Tensor, by_T: Tensor, slope_T: Tensor) -> Tensor:
    """Return the number `value` (of slope_T's dtype) whose derivative by by_T [T] is slope_T [T]."""
    sloped: Tensor = _WithSlope.apply(by_T, value, slope_T)  # type: ignore[no-untyped-call]
    return sloped


class _WithSlope(torch.autograd.Function):
    """Keeps one vector from forward to backward."""

    @staticmethod
    def forward(ctx: Any, by_T: Tensor, value: Tensor, slope_T: Tensor) -> Tensor:
        ctx.save_for_backward(slope_T)
        ctx.dtype = by_T.dtype
        return value.to(slope_T.dtype, copy=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (slope_T,) = ctx.saved_tensors
        return (gradient * slope_T).to(ctx.dtype), None, None
