"""What bfloat16 does to a ratio: engine and learner round differently, which alone leaves a narrow band."""

import math
from collections.abc import Iterator
from typing import Final

from slipstream.algorithms.spec import Gmpo, Gspo, GspoToken, PpoClip, RolloutIs, Rspo, anchor_of, band
from slipstream.config.problem import Problem
from slipstream.config.schema import RunConfig

MISMATCH: Final = 0.0024
"""Mean squared log ratio of a token at equal weights in bfloat16: the least that SmolLM2-135M shows."""
NOTEWORTHY: Final = 0.05
"""Share of the tokens without a gradient, for this reason alone, from which a note is worth reading."""
CLIPPED: Final = (PpoClip, RolloutIs, Gspo, GspoToken, Gmpo, Rspo)
"""Objectives without a gradient beyond their band; the others weigh what is there."""


def narrow_band(config: RunConfig) -> Iterator[Problem]:
    """A band of the ratio to the rollout's logprobs that the difference of two implementations leaves."""
    objective = config.algorithm.resolved_objective()
    if config.model.dtype != "bfloat16" or not isinstance(objective, CLIPPED):
        return
    if anchor_of(objective) != "rollout":
        return
    low, high = band(objective)
    sequence = isinstance(objective, Gspo | GspoToken)
    tokens = config.rollout.max_new_tokens if sequence else 1
    noise = math.sqrt(MISMATCH / tokens)
    lost = share_lost(low, high, noise)
    if lost < NOTEWORTHY:
        return
    what = f"the mean of {tokens} tokens" if sequence else "a token"
    yield Problem(
        key="algorithm.objective",
        reason=f"{objective.kind} has the band [{low:g}, {high:g}] around the rollout's logprobs, and in "
        f"bfloat16 engine and learner differ at equal weights: the log ratio of {what} has a standard "
        f"deviation of about {noise:.1g}, so that {100 * lost:.0f} % of the tokens have no gradient before "
        "anything has changed",
        remedy="set model.dtype to float32, widen the band, or set the anchor to batch with a correction "
        "such as tis",
        severity="note",
    )


def share_lost(low: float, high: float, noise: float) -> float:
    """Share without a gradient: above the band where the advantage is positive, below it where negative.

    `noise`: standard deviation of a normal log ratio around 0; both signs are equally likely.
    """
    above = 0.0 if math.isinf(high) else math.erfc(math.log(high) / (noise * math.sqrt(2))) / 2
    below = 0.0 if low <= 0 else math.erfc(-math.log(low) / (noise * math.sqrt(2))) / 2
    return (above + below) / 2
