"""What a loss can be made of, as frozen data without torch, read by the schema of a run and by the maths."""

from slipstream.algorithms.spec.advantage import ADVANTAGES, Advantage, BatchScaled, DrGrpo, Grpo, Rloo
from slipstream.algorithms.spec.loss import AGGREGATIONS, Aggregation, AggregationName, LossSpec
from slipstream.algorithms.spec.objective import OBJECTIVES, Anchor, Cispo, Is, Objective, Pg, PpoClip, band

__all__ = [
    "ADVANTAGES",
    "AGGREGATIONS",
    "OBJECTIVES",
    "Advantage",
    "Aggregation",
    "AggregationName",
    "Anchor",
    "BatchScaled",
    "Cispo",
    "DrGrpo",
    "Grpo",
    "Is",
    "LossSpec",
    "Objective",
    "Pg",
    "PpoClip",
    "Rloo",
    "band",
]
