"""Advantage estimators as data: the table of all of them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from slipstream.algorithms.spec.batch_advantage import BatchScaled, Gdpo, ReinforcePp
from slipstream.algorithms.spec.critic_advantage import Gae
from slipstream.algorithms.spec.group_advantage import DrGrpo, Gopo, Grpo, MaxRl, Opo, Rloo
from slipstream.algorithms.spec.history_advantage import Ema, Mixed
from slipstream.algorithms.spec.token_advantage import OptimalToken

Advantage = (
    Grpo
    | DrGrpo
    | Rloo
    | MaxRl
    | Opo
    | Gopo
    | BatchScaled
    | ReinforcePp
    | Gdpo
    | Ema
    | Mixed
    | OptimalToken
    | Gae
)

ADVANTAGES: Final[Mapping[str, type[Advantage]]] = MappingProxyType(
    {
        "grpo": Grpo,
        "dr_grpo": DrGrpo,
        "rloo": Rloo,
        "maxrl": MaxRl,
        "opo": Opo,
        "gopo": Gopo,
        "batch_scaled": BatchScaled,
        "reinforce_pp": ReinforcePp,
        "gdpo": Gdpo,
        "ema": Ema,
        "mixed": Mixed,
        "optimal_token": OptimalToken,
        "gae": Gae,
    }
)


def needs_groups(advantage: Advantage) -> bool:
    """Whether a group of one completion means nothing to the estimator."""
    if isinstance(advantage, ReinforcePp):
        return advantage.group_mean
    return not isinstance(advantage, Ema | Gae)
