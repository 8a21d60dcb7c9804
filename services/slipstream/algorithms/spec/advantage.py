"""The union of the specifications of all advantages."""

from collections.abc import Mapping
from typing import Final

from slipstream.algorithms.spec.batch_advantage import BatchScaled, Gdpo, ReinforcePp
from slipstream.algorithms.spec.critic_advantage import Gae
from slipstream.algorithms.spec.custom import CustomAdvantage
from slipstream.algorithms.spec.group_advantage import DrGrpo, Gopo, Grpo, MaxRl, Opo, Rloo
from slipstream.algorithms.spec.history_advantage import Ema, Mixed
from slipstream.algorithms.spec.kinds import built_in
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
    | CustomAdvantage
)

ADVANTAGES: Final[Mapping[str, type[Advantage]]] = built_in(Advantage)
"""The estimators of this package by kind; `custom` is a function of the user's."""
