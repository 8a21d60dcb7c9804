"""Policy objectives as data: how ratios weigh the advantage. The table of all of them, and what they need."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from slipstream.algorithms.spec.checks import Anchor
from slipstream.algorithms.spec.divergence_objective import Dppo, Ipo
from slipstream.algorithms.spec.sequence_objective import Gmpo, Gspo, GspoToken, Rspo, Vespo
from slipstream.algorithms.spec.token_objective import Cispo, Is, Pg, PpoClip, RolloutIs, Sapo, Topr

Objective = (
    PpoClip | Cispo | Pg | Is | RolloutIs | Sapo | Topr | Gspo | GspoToken | Gmpo | Rspo | Vespo | Dppo | Ipo
)

OBJECTIVES: Final[Mapping[str, type[Objective]]] = MappingProxyType(
    {
        "pg": Pg,
        "is": Is,
        "ppo_clip": PpoClip,
        "cispo": Cispo,
        "rollout_is": RolloutIs,
        "sapo": Sapo,
        "topr": Topr,
        "gspo": Gspo,
        "gspo_token": GspoToken,
        "gmpo": Gmpo,
        "rspo": Rspo,
        "vespo": Vespo,
        "dppo": Dppo,
        "ipo": Ipo,
    }
)

ONE_ADVANTAGE_PER_SEQUENCE: Final = (Gspo, Gmpo, Rspo, Vespo)
"""Objectives of a whole sequence: an advantage per token means nothing to them."""


def anchor_of(objective: Objective) -> Anchor | None:
    """Return whose logprobs are under the objective's ratio; None for pg, which has none."""
    if isinstance(objective, Pg):
        return None
    return "rollout" if isinstance(objective, Dppo | Ipo) else objective.anchor


def top_logprobs_of(objective: Objective) -> int:
    """Return how many of the likeliest tokens of mu the objective reads at each position; 0 for most."""
    return objective.resolved_top_k if isinstance(objective, Dppo) else 0


def band(objective: Objective) -> tuple[float, float]:
    """Return the lower and upper end of the objective's ratio band; (0, inf) where it has none."""
    if isinstance(objective, Gmpo | Rspo):
        bound = math.inf if objective.log_clip is None else objective.log_clip
        return math.exp(-bound), math.exp(bound)
    if isinstance(objective, Dppo):
        return 0.0, math.inf if objective.cap is None else objective.cap
    if isinstance(objective, Topr):
        return 0.0, 1.0
    if not isinstance(objective, PpoClip | Cispo | RolloutIs | Gspo | GspoToken):
        return 0.0, math.inf
    low = 0.0 if objective.clip_low is None else 1.0 - objective.clip_low
    high = math.inf if objective.clip_high is None else 1.0 + objective.clip_high
    return low, high
