"""The parts of a loss as frozen data without torch, read by the schema of a run and by the maths."""

from slipstream.algorithms.spec.advantage import ADVANTAGES, Advantage
from slipstream.algorithms.spec.batch_advantage import BatchScaled, Gdpo, ReinforcePp
from slipstream.algorithms.spec.correction import (
    CORRECTIONS,
    Correction,
    GeometricRejection,
    IcePop,
    M2po,
    Mis,
    Opsm,
    OutlierTokens,
    Tis,
)
from slipstream.algorithms.spec.covariance import ClipCov, KlCov
from slipstream.algorithms.spec.critic_advantage import Gae
from slipstream.algorithms.spec.custom import CustomAdvantage, CustomObjective
from slipstream.algorithms.spec.distillation import Distillation
from slipstream.algorithms.spec.divergence_objective import Dppo, Ipo
from slipstream.algorithms.spec.group_advantage import DrGrpo, Gopo, Grpo, MaxRl, Opo, Rloo
from slipstream.algorithms.spec.history_advantage import Ema, Mixed
from slipstream.algorithms.spec.loss import AGGREGATIONS, Aggregation, AggregationName, LossSpec, TopEntropy
from slipstream.algorithms.spec.objective import OBJECTIVES, Objective
from slipstream.algorithms.spec.regularizer import DriftPenalty, Entropy, Kl
from slipstream.algorithms.spec.sequence_objective import Gmpo, Gspo, GspoToken, Rspo, Vespo
from slipstream.algorithms.spec.shaping import (
    AdaptiveGroup,
    Buckets,
    CollapseAlarm,
    Difficulty,
    DynamicSampling,
    Goldilocks,
    OverlongFilter,
    Shaping,
    SoftOverlong,
)
from slipstream.algorithms.spec.token_advantage import OptimalToken
from slipstream.algorithms.spec.token_objective import Cispo, Is, Pg, PpoClip, RolloutIs, Sapo, Topr

__all__ = [
    "ADVANTAGES",
    "AGGREGATIONS",
    "CORRECTIONS",
    "OBJECTIVES",
    "AdaptiveGroup",
    "Advantage",
    "Aggregation",
    "AggregationName",
    "BatchScaled",
    "Buckets",
    "Cispo",
    "ClipCov",
    "CollapseAlarm",
    "Correction",
    "CustomAdvantage",
    "CustomObjective",
    "Difficulty",
    "Distillation",
    "Dppo",
    "DrGrpo",
    "DriftPenalty",
    "DynamicSampling",
    "Ema",
    "Entropy",
    "Gae",
    "Gdpo",
    "GeometricRejection",
    "Gmpo",
    "Goldilocks",
    "Gopo",
    "Grpo",
    "Gspo",
    "GspoToken",
    "IcePop",
    "Ipo",
    "Is",
    "Kl",
    "KlCov",
    "LossSpec",
    "M2po",
    "MaxRl",
    "Mis",
    "Mixed",
    "Objective",
    "Opo",
    "Opsm",
    "OptimalToken",
    "OutlierTokens",
    "OverlongFilter",
    "Pg",
    "PpoClip",
    "ReinforcePp",
    "Rloo",
    "RolloutIs",
    "Rspo",
    "Sapo",
    "Shaping",
    "SoftOverlong",
    "Tis",
    "TopEntropy",
    "Topr",
    "Vespo",
]
