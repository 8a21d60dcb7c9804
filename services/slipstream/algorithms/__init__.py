"""Pure maths of the losses: specifications without torch, and the torch functions loaded on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from slipstream.algorithms.presets import PRESETS, Preset, describe
from slipstream.algorithms.resolve import resolve_advantage, resolve_loss
from slipstream.algorithms.spec import (
    ADVANTAGES,
    AGGREGATIONS,
    OBJECTIVES,
    Advantage,
    Aggregation,
    LossSpec,
    Objective,
)
from slipstream.algorithms.staleness import (
    StalenessSummary,
    over_age_mask,
    summarize,
    token_staleness,
    token_versions,
)

if TYPE_CHECKING:
    from slipstream.algorithms.advantages import group_advantages
    from slipstream.algorithms.aggregation import Counts, count, token_weights
    from slipstream.algorithms.loss import PolicyLoss, policy_loss
    from slipstream.algorithms.metrics import REDUCED_BY_MAX, finalize, merge

__all__ = [
    "ADVANTAGES",
    "AGGREGATIONS",
    "OBJECTIVES",
    "PRESETS",
    "REDUCED_BY_MAX",
    "Advantage",
    "Aggregation",
    "Counts",
    "LossSpec",
    "Objective",
    "PolicyLoss",
    "Preset",
    "StalenessSummary",
    "count",
    "describe",
    "finalize",
    "group_advantages",
    "merge",
    "over_age_mask",
    "policy_loss",
    "resolve_advantage",
    "resolve_loss",
    "summarize",
    "token_staleness",
    "token_versions",
    "token_weights",
]

_NEEDS_TORCH: Final = {
    "group_advantages": "advantages",
    "Counts": "aggregation",
    "count": "aggregation",
    "token_weights": "aggregation",
    "PolicyLoss": "loss",
    "policy_loss": "loss",
    "REDUCED_BY_MAX": "metrics",
    "finalize": "metrics",
    "merge": "metrics",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _NEEDS_TORCH:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_NEEDS_TORCH[name]}"), name)
