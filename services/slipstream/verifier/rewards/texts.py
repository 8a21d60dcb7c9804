"""Rewards that read long texts as a whole: judged in the children, a group at a time, never in the loop."""

from typing import Any

from slipstream.config.rewards import RewardSection
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Reward
from slipstream.verifier.workers.scorer import PoolScorer

SECONDS = 10.0
"""Deadline of a group; they take milliseconds an answer, so one that is late is no fault of the answers."""


def of_texts(function: str, config: RewardSection, resources: Resources, **arguments: Any) -> Reward:
    """slipstream.verifier.rewards.`function`:score(prompt, answers, **arguments) as a reward."""
    return PoolScorer(
        f"slipstream.verifier.rewards.{function}:score",
        name=config.name,
        seconds=SECONDS,
        resources=resources,
        arguments=arguments,
        overrun="error",
    )
