"""Low-rank adapters (LoRA): what trains when the model itself does not."""

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

SERVED: Final[Mapping[str, Literal["merged", "adapter"]]] = {"float32": "merged", "bfloat16": "adapter"}
"""What is served of adapters where the configuration does not say, by model.dtype."""


class LoraConfig(BaseModel):
    """Train two thin matrices beside each chosen layer, and nothing else. See LoRA, arXiv:2106.09685.

    There is no dropout: it would draw other adapters for the ratio than the rollout sampled with.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    rank: int = Field(16, ge=1)
    """Rank of the adapters: the inner size of the two matrices."""
    alpha: int = Field(32, ge=1)
    """Their product is scaled by alpha / rank (write alpha times √rank for rank-stabilised LoRA)."""
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Names of linear layers, whole or their ends (`q_proj`); `all-linear` is all but the output head."""
    serve: Literal["merged", "adapter"] = "merged"
    """What is sent to the rollouts: `merged`, all weights with the adapters in them; `adapter`, the adapters
    alone, which vLLM applies to the base that it loaded from the model's directory. Left out: `merged` with
    model.dtype float32, `adapter` with bfloat16, where merging would round the adapters away."""
