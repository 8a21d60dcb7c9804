"""The union of the specifications of all advantages."""

from collections.abc import Mapping
from typing import Final

from slipstream.algorithms.spec import (
    batch_advantage,
    critic_advantage,
    custom,
    group_advantage,
    history_advantage,
    kinds,
    token_advantage,
)

Advantage = (
    group_advantage.Grpo
    | group_advantage.DrGrpo
    | group_advantage.Rloo
    | group_advantage.MaxRl
    | group_advantage.Opo
    | group_advantage.Gopo
    | batch_advantage.BatchScaled
    | batch_advantage.ReinforcePp
    | batch_advantage.Gdpo
    | history_advantage.Ema
    | history_advantage.Mixed
    | token_advantage.OptimalToken
    | critic_advantage.Gae
    | custom.CustomAdvantage
)

ADVANTAGES: Final[Mapping[str, type[Advantage]]] = kinds.built_in(Advantage)
"""The estimators of this package by kind; `custom` is a function of the user's."""
