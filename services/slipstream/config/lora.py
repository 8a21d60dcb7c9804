"""Low-rank adapters (LoRA), which train in place of the model."""

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

SERVED: Final[Mapping[str, Literal["merged", "adapter"]]] = {"float32": "merged", "bfloat16": "adapter"}
"""Default of `serve`, by model.dtype."""


class LoraConfig(BaseModel):
    """Train two thin matrices for each chosen layer, and nothing else. See LoRA, arXiv:2106.09685.

    Dropout is not supported: the learner's logprobs would be those of other adapters than the rollout sampled
    with.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    rank: int = Field(16, ge=1)
    """Rank of the adapters: the inner size of the two matrices."""
    alpha: int = Field(32, ge=1)
    """Their product is scaled by alpha / rank (write alpha times √rank for rank-stabilised LoRA)."""
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Linear layers, by full name or last part (`q_proj`); `all-linear` is all but the output head."""
    serve: Literal["merged", "adapter"] = "merged"
    """Weights that are sent to the rollouts: `merged`, all weights with the adapters added; `adapter`, the
    adapters alone, which vLLM applies to the base model that it loaded from the model's directory. Left out:
    `merged` with model.dtype float32, `adapter` with bfloat16, where merging would round the adapters
    away."""
