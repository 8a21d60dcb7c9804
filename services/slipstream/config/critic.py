"""The critic of a run whose advantage is gae."""

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from slipstream.config.paths import HomePath

FOREIGN: Final = {"head": "path", "model": "loss_coefficient"}
"""The key that a critic of the kind does not read."""
TIMES: Final = 10
"""Default learning rate of the critic over that of the policy: verl has 1e-5 and 1e-6, OpenRLHF 9e-6 and
5e-7."""


class CriticConfig(BaseModel):
    """The model that predicts the value of the state before each sampled token, in units of reward."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    kind: Literal["head", "model"] = "head"
    """A linear head on the policy's last hidden state, or a model of its own with such a head."""
    path: HomePath | None = None
    """Hugging Face directory of the initial model, with the policy's vocabulary; null: the policy's model."""
    learning_rate: float | None = Field(None, gt=0)
    """Peak learning rate of the critic's own AdamW, over learner.schedule, with the policy's betas and weight
    decay; null is ten times learner.learning_rate."""
    clip_range: float | None = Field(0.2, gt=0)
    """How far a value may move from what it was before the batch, in units of reward; null does not clip."""
    loss_coefficient: float = Field(0.5, ge=0)
    """Weight of the value loss in the gradient of the layers that a head shares with the policy; 0: none."""
    warmup_steps: int = Field(0, ge=0)
    """Number of first steps of a run in which only the critic trains."""

    def peak(self, policy_rate: float) -> float:
        """Return the peak learning rate for a policy with this peak rate."""
        return TIMES * policy_rate if self.learning_rate is None else self.learning_rate

    @model_validator(mode="after")
    def only_its_own_keys(self) -> "CriticConfig":
        unread = FOREIGN[self.kind]
        default = type(self).model_fields[unread].default
        if getattr(self, unread) != default:
            raise ValueError(f"{unread} has no effect on a critic of the kind {self.kind}; leave it out")
        return self
