"""A forward pass in bfloat16 as the rollout engine makes it, from weights that are trained in float32.

torch.autocast rounds the operands of matrix products alone: embeddings, norms, and with them the sums between
the layers stay in float32, while an engine that was started in bfloat16 rounds all of them. Here every module
that owns parameters computes with rounded ones, on rounded input; gradients reach the float32 parameters
through the rounding. The output head is applied in float32 to rounded hidden states and weights.
"""

from types import MethodType
from typing import Any, Final

import torch

MARK: Final = "_slipstream_dtype"


def compute_in(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Have every module of the model that owns floating-point parameters compute in `dtype` from now on.

    Parameters stay what they are; in float32 nothing is rounded. May be called again, with another dtype or
    after modules were added.
    """
    for module in model.modules():
        owns = any(p is not None and p.is_floating_point() for p in module._parameters.values())
        if MARK in module.__dict__:
            del module.__dict__[MARK], module.__dict__["forward"]
        if owns and dtype is not torch.float32:
            module.__dict__[MARK] = dtype
            # a bound method: a deep copy of the module has one of its own
            module.__dict__["forward"] = MethodType(_forward, module)


def rounded(value: Any, dtype: torch.dtype) -> Any:
    """A floating-point tensor in `dtype`; anything else as it is."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(dtype)
    return value


def _forward(module: Any, *arguments: Any, **named: Any) -> Any:
    """The forward pass of a module's class, with rounded parameters in the place of its own."""
    dtype: torch.dtype = module.__dict__[MARK]
    own = module._parameters
    module.__dict__["_parameters"] = {name: rounded(parameter, dtype) for name, parameter in own.items()}
    try:
        return type(module).forward(
            module,
            *(rounded(argument, dtype) for argument in arguments),
            **{name: rounded(argument, dtype) for name, argument in named.items()},
        )
    finally:
        module.__dict__["_parameters"] = own
