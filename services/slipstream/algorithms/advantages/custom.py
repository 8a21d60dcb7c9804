"""Advantages that a function of the user's computes.

Suffixes: _B completions.
"""

import torch
from torch import Tensor

from slipstream.algorithms.advantages.completions import Completions
from slipstream.algorithms.spec import CustomAdvantage
from slipstream.functions import load_function


def custom(spec: CustomAdvantage, completions: Completions) -> Tensor:
    """Return what the function returns, [B] float64, with 0 for a completion whose reward was withheld.

    Errors: ValueError where the function returns something else than finite numbers [B].
    """
    advantage_B = load_function(spec.function)(completions, **spec.arguments)
    total_B = completions.total_B
    if not isinstance(advantage_B, Tensor) or advantage_B.shape != total_B.shape:
        shape = list(advantage_B.shape) if isinstance(advantage_B, Tensor) else type(advantage_B).__name__
        raise ValueError(
            f"{spec.function}: returned {shape}, needs a tensor {list(total_B.shape)}, one "
            "advantage for each completion"
        )
    advantage_B = torch.where(total_B.isnan(), 0.0, advantage_B.detach().double())
    if not bool(advantage_B.isfinite().all()):
        raise ValueError(f"{spec.function}: returned an advantage that is not finite for a scored completion")
    return advantage_B
