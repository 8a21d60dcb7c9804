"""An objective that is a function of the user's: autograd gives the slopes that the other objectives state.

Suffixes: _T packed tokens.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slipstream.algorithms.objectives.surrogate import Surrogate, Tokens, never
from slipstream.algorithms.spec import CustomObjective
from slipstream.functions import load_function


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """What a function returns that counts the tokens which it clipped; else it returns the loss alone."""

    loss_T: Tensor
    """Loss of each token, to be minimised, with a gradient by `Tokens.logprobs_T`."""
    clipped_low_T: Tensor | None = None
    """Bool: the lower end of the function's band took effect; for the metric clip_fraction_low."""
    clipped_high_T: Tensor | None = None
    """Bool: the upper end took effect; for the metric clip_fraction_high."""


def custom(spec: CustomObjective, tokens: Tokens) -> Surrogate:
    """J = -loss of each token; g = the derivative of the sum of J over the mask by the logprob of the token.

    Errors: ValueError where the function returns something else than losses [T] with a gradient.
    """
    function = load_function(spec.function)
    with torch.enable_grad():
        l_T = tokens.logprobs_T.detach().clone().requires_grad_()
        z_T = tokens.log_ratio_T + (l_T - l_T.detach())
        returned = function(replace(tokens, logprobs_T=l_T, log_ratio_T=z_T), **spec.arguments)
        result = returned if isinstance(returned, TokenLoss) else TokenLoss(loss_T=returned)
        _check(spec.function, result, l_T)
        (slope_T,) = torch.autograd.grad(-torch.where(tokens.mask_T, result.loss_T, 0.0).sum(), l_T)
    A_T = tokens.advantages_T
    nowhere_T = never(A_T)
    return Surrogate(
        value_T=-result.loss_T.detach().to(l_T),
        weight_T=torch.where(A_T == 0, 0.0, slope_T / torch.where(A_T == 0, 1.0, A_T)),
        log_ratio_T=tokens.z_T,
        below_T=nowhere_T,
        above_T=nowhere_T,
        clipped_low_T=nowhere_T if result.clipped_low_T is None else result.clipped_low_T.detach(),
        clipped_high_T=nowhere_T if result.clipped_high_T is None else result.clipped_high_T.detach(),
        slope_T=slope_T,
    )


def _check(name: str, result: TokenLoss, logprobs_T: Tensor) -> None:
    loss_T: object = result.loss_T
    if not isinstance(loss_T, Tensor):
        raise ValueError(
            f"{name}: returned {type(loss_T).__name__}, needs a tensor [T], the loss of each token"
        )
    if loss_T.shape != logprobs_T.shape:
        raise ValueError(
            f"{name}: returned a loss of shape {list(loss_T.shape)}, needs {list(logprobs_T.shape)}, one for "
            "each token; return no sum and no mean, the aggregation of the run weighs the tokens"
        )
    if not loss_T.requires_grad:
        raise ValueError(
            f"{name}: returned a loss without a gradient, needs one by tokens.logprobs_T or "
            "tokens.log_ratio_T; look for a detach() or a no_grad() around the whole loss"
        )
    for side in ("clipped_low_T", "clipped_high_T"):
        clipped_T = getattr(result, side)
        if clipped_T is None:
            continue
        if clipped_T.dtype != torch.bool or clipped_T.shape != logprobs_T.shape:
            raise ValueError(
                f"{name}: returned {side} of {clipped_T.dtype} {list(clipped_T.shape)}, needs torch.bool "
                f"{list(logprobs_T.shape)}"
            )
