"""The union of the specifications of all objectives: how the ratio weighs the advantage."""

from collections.abc import Mapping
from typing import Final

from slipstream.algorithms.spec.custom import CustomObjective
from slipstream.algorithms.spec.divergence_objective import Dppo, Ipo
from slipstream.algorithms.spec.kinds import built_in
from slipstream.algorithms.spec.sequence_objective import Gmpo, Gspo, GspoToken, Rspo, Vespo
from slipstream.algorithms.spec.token_objective import Cispo, Is, Pg, PpoClip, RolloutIs, Sapo, Topr

Objective = (
    Pg
    | Is
    | PpoClip
    | Cispo
    | RolloutIs
    | Sapo
    | Topr
    | Gspo
    | GspoToken
    | Gmpo
    | Rspo
    | Vespo
    | Dppo
    | Ipo
    | CustomObjective
)

OBJECTIVES: Final[Mapping[str, type[Objective]]] = built_in(Objective)
"""The objectives of this package by kind; `custom` is a function of the user's."""
