"""The sections `evaluation` and `staleness`."""

from typing import Literal

from pydantic import Field

from slipstream.config.sections.section import Section


class EvaluationConfig(Section):
    """Held-out evaluation: sampled at the training temperature, on prompts that are never trained on."""

    every_steps: int = Field(50, ge=0)
    """Steps between evaluations; 0 evaluates before the first and after the last step only."""
    prompts: int = Field(256, ge=1)
    """Number of held-out prompts; the first ones are taken."""
    samples_per_prompt: int = Field(4, ge=1)
    """Completions for each prompt: n of best-of-n, and k of maj@k."""
    reward: str = "exact_match"
    """Name of the reward whose mean is the accuracy."""
    sampling: Literal["plain", "verbalized"] = "plain"
    """`plain` asks for one answer in each completion; `verbalized` for several candidates with
    probabilities."""
    candidates: int = Field(5, ge=2)
    """Candidates in one completion of `verbalized` sampling."""
    timeout_seconds: float = Field(1200.0, gt=0)
    """Longest wait for an evaluation; after it there is no result, and the log has a line."""


class StalenessConfig(Section):
    """The two bounds on the age of training data."""

    pipeline_depth: int = Field(2, ge=0)
    """Most batches that are sampled ahead of the one that trains; 0 is synchronous training."""
    max_staleness: int = Field(8, ge=0)
    """Largest age of a token that trains, in policy versions; a group of older tokens is dropped."""
