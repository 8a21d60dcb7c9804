"""The union of the specifications of all objectives: how the ratio weighs the advantage."""

from collections.abc import Mapping
from typing import Final

from slipstream.algorithms.spec import (
    custom,
    divergence_objective,
    kinds,
    sequence_objective,
    token_objective,
)

Objective = (
    token_objective.Pg
    | token_objective.Is
    | token_objective.PpoClip
    | token_objective.Cispo
    | token_objective.RolloutIs
    | token_objective.Sapo
    | token_objective.Topr
    | sequence_objective.Gspo
    | sequence_objective.GspoToken
    | sequence_objective.Gmpo
    | sequence_objective.Rspo
    | sequence_objective.Vespo
    | divergence_objective.Dppo
    | divergence_objective.Ipo
    | custom.CustomObjective
)

OBJECTIVES: Final[Mapping[str, type[Objective]]] = kinds.built_in(Objective)
"""The objectives of this package by kind; `custom` is a function of the user's."""
