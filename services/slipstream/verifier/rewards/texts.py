"""Rewards that read long texts as a whole: judged in the children, a group at a time, never in the loop."""

from typing import Any

from slipstream.config.rewards import RewardSection
from slipstream.verifier.reward import Reward
from slipstream.verifier.surroundings import Surroundings
from slipstream.verifier.workers.judge import InWorkers

SECONDS = 10.0
"""Deadline of a group; they take milliseconds an answer, so one that is late is no fault of the answers."""


def of_texts(function: str, config: RewardSection, surroundings: Surroundings, **arguments: Any) -> Reward:
    """slipstream.verifier.rewards.`function`:judge(prompt, answers, **arguments) as a reward."""
    return InWorkers(
        f"slipstream.verifier.rewards.{function}:judge",
        name=config.name,
        seconds=SECONDS,
        surroundings=surroundings,
        arguments=arguments,
        overrun="error",
    )
