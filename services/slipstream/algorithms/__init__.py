"""The maths of the losses as pure functions. Importing it needs no torch: the functions load on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from slipstream.algorithms.baselines import RunningBaselines
from slipstream.algorithms.presets import PRESETS, describe
from slipstream.algorithms.resolve import resolve_advantage, resolve_loss
from slipstream.algorithms.spec import ADVANTAGES, AGGREGATIONS, OBJECTIVES, LossSpec
from slipstream.algorithms.staleness import over_age_mask, summarize, token_staleness, token_versions

if TYPE_CHECKING:
    from slipstream.algorithms.advantages import group_advantages
    from slipstream.algorithms.advantages.process import StepRewards, process_advantages
    from slipstream.algorithms.aggregation import Counts, count, token_weights
    from slipstream.algorithms.critic import (
        ValueLoss,
        final_rewards,
        finalize_values,
        moments,
        value_loss,
        whiten,
    )
    from slipstream.algorithms.generalized_advantage import gae
    from slipstream.algorithms.layout import Layout, lay_out
    from slipstream.algorithms.loss import PolicyLoss, m2po_limit, policy_loss
    from slipstream.algorithms.metrics import finalize, finalize_by_staleness, merge
    from slipstream.algorithms.microbatch import Taught, TeacherTop, TopK
    from slipstream.algorithms.objectives.custom import TokenLoss
    from slipstream.algorithms.regularizers import active_entropy, adapt_entropy, reward_penalty
    from slipstream.algorithms.tally import Tally

__all__ = [
    "ADVANTAGES",
    "AGGREGATIONS",
    "OBJECTIVES",
    "PRESETS",
    "Counts",
    "Layout",
    "LossSpec",
    "PolicyLoss",
    "RunningBaselines",
    "StepRewards",
    "Tally",
    "Taught",
    "TeacherTop",
    "TokenLoss",
    "TopK",
    "ValueLoss",
    "active_entropy",
    "adapt_entropy",
    "count",
    "describe",
    "final_rewards",
    "finalize",
    "finalize_by_staleness",
    "finalize_values",
    "gae",
    "group_advantages",
    "lay_out",
    "m2po_limit",
    "merge",
    "moments",
    "over_age_mask",
    "policy_loss",
    "process_advantages",
    "resolve_advantage",
    "resolve_loss",
    "reward_penalty",
    "summarize",
    "token_staleness",
    "token_versions",
    "token_weights",
    "value_loss",
    "whiten",
]

_NEEDS_TORCH: Final = {
    "group_advantages": "advantages",
    "gae": "generalized_advantage",
    "StepRewards": "advantages.process",
    "process_advantages": "advantages.process",
    "Counts": "aggregation",
    "count": "aggregation",
    "token_weights": "aggregation",
    "ValueLoss": "critic",
    "final_rewards": "critic",
    "finalize_values": "critic",
    "moments": "critic",
    "value_loss": "critic",
    "whiten": "critic",
    "Layout": "layout",
    "lay_out": "layout",
    "PolicyLoss": "loss",
    "policy_loss": "loss",
    "finalize": "metrics",
    "finalize_by_staleness": "metrics",
    "merge": "metrics",
    "m2po_limit": "loss",
    "Taught": "microbatch",
    "TeacherTop": "microbatch",
    "TokenLoss": "objectives.custom",
    "TopK": "microbatch",
    "active_entropy": "regularizers",
    "adapt_entropy": "regularizers",
    "reward_penalty": "regularizers",
    "Tally": "tally",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _NEEDS_TORCH:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_NEEDS_TORCH[name]}"), name)
