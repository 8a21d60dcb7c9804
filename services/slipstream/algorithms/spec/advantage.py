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


_SCALES_OF_GROUPS: Final[Mapping[type[Advantage], str]] = MappingProxyType(
    {
        Grpo: "divides by the standard deviation of each group",
        Gopo: "ranks the answers of each group",
        MaxRl: "divides by the mean reward of each group",
    }
)


def scale_of_groups(advantage: Advantage) -> str | None:
    """How the estimator takes the scale out of each group's rewards; None where it keeps the scale.

    In a group whose task rewards are equal, a penalty is then all that differs: its coefficient cancels, and
    the penalty alone makes advantages of full size. gdpo, which rescales each component apart, is not meant:
    there the coefficient is the component's weight.
    """
    if isinstance(advantage, Rloo) and advantage.scale == "group":
        return _SCALES_OF_GROUPS[Grpo]
    return _SCALES_OF_GROUPS.get(type(advantage))
