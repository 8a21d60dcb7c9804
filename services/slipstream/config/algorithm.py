"""The algorithm section of a run: a preset, and the axes that replace parts of it."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from slipstream.algorithms.presets import PRESETS
from slipstream.algorithms.spec import (
    Advantage,
    Aggregation,
    AggregationName,
    BatchScaled,
    Cispo,
    DrGrpo,
    Grpo,
    Is,
    LossSpec,
    Objective,
    Pg,
    PpoClip,
    Rloo,
)

AdvantageConfig = Annotated[Grpo | DrGrpo | Rloo | BatchScaled, Field(discriminator="kind")]
ObjectiveConfig = Annotated[PpoClip | Cispo | Pg | Is, Field(discriminator="kind")]


class AlgorithmConfig(BaseModel):
    """Advantage × objective × aggregation; an axis that is given replaces the preset's."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    preset: str = "cispo"
    """A recipe of the papers; see slipstream.algorithms.presets."""
    advantage: AdvantageConfig | None = None
    """Baseline and scale of the rewards."""
    objective: ObjectiveConfig | None = None
    """How the ratio of a token weighs its advantage."""
    aggregation: AggregationName | None = None
    """How the tokens of a batch become one loss."""
    max_tokens: int | None = Field(None, ge=1)
    """Constant token budget of `token_sum_norm`; default: rollout.max_new_tokens."""

    @model_validator(mode="after")
    def preset_is_known(self) -> "AlgorithmConfig":
        if self.preset not in PRESETS:
            raise ValueError(
                f"preset {self.preset!r} is not known; choose one of {', '.join(sorted(PRESETS))}"
            )
        return self

    def resolved_advantage(self) -> Advantage:
        """The advantage that the run uses."""
        return self.advantage or PRESETS[self.preset].advantage

    def resolved_objective(self) -> Objective:
        """The objective that the run uses."""
        return self.objective or PRESETS[self.preset].objective

    def resolved_loss(self, *, max_staleness: int, max_new_tokens: int) -> LossSpec:
        """The loss that the run uses. Errors: ValueError for a combination that is known to be wrong."""
        name = self.aggregation or PRESETS[self.preset].aggregation
        budget = (self.max_tokens or max_new_tokens) if name == "token_sum_norm" else None
        return LossSpec(
            objective=self.resolved_objective(),
            aggregation=Aggregation(kind=name, max_tokens=budget),
            max_staleness=max_staleness,
        )
