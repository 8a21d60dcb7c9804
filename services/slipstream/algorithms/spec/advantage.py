"""Advantage estimators as data: the table of all of them."""

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Undefined:
    """Why an estimator has no advantage by step, and what has one."""

    reason: str
    remedy: str


def undefined_by_step(advantage: Advantage) -> Undefined | None:
    """Why the estimator cannot take rewards by step (process supervision); None where a source defines it.

    grpo: DeepSeekMath, arXiv:2402.03300, 4.1.3. rloo: PRIME, arXiv:2502.01456. reinforce_pp: REINFORCE++,
    arXiv:2501.03262, whose returns are normalised over the tokens of a batch. gae: as the rewards of tokens.
    """
    if isinstance(advantage, Grpo | Gae) or (isinstance(advantage, Rloo) and advantage.scale == "none"):
        return None
    if isinstance(advantage, Rloo):
        reason = "the standard deviation of a group of totals says nothing of single steps"
        return Undefined(reason=reason, remedy="set scale: none, or use grpo")
    if isinstance(advantage, ReinforcePp):
        if not advantage.group_mean and advantage.weighting == "token":
            return None
        reason = "by step its returns are normalised over the tokens of the batch, without a group's mean"
        return Undefined(reason=reason, remedy="set group_mean: false and weighting: token")
    reason = "no source defines it for rewards by step"
    return Undefined(reason=reason, remedy="use grpo, rloo, reinforce_pp (group_mean: false) or gae")
