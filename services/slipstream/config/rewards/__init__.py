"""The rewards of a run: components of the reward vector, each of a kind with arguments of its own."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from slipstream.config.rewards.base import ComponentName, RewardSection
from slipstream.config.rewards.custom import CustomConfig
from slipstream.config.rewards.judge import JudgeConfig
from slipstream.config.rewards.models import ProcessRewardConfig, RewardModelConfig
from slipstream.config.rewards.rules import CountdownConfig, ExactMatchConfig, FormatConfig

__all__ = [
    "ComponentName",
    "CountdownConfig",
    "CustomConfig",
    "ExactMatchConfig",
    "FormatConfig",
    "JudgeConfig",
    "ProcessRewardConfig",
    "RewardConfig",
    "RewardModelConfig",
    "RewardSection",
]


def reward_kind(value: Any) -> Any:
    """What kind a reward is: its `kind`, or else its `name`; for pydantic."""
    if isinstance(value, RewardSection):
        return value.kind
    return value.get("kind", value.get("name")) if isinstance(value, dict) else None


RewardConfig = Annotated[
    Annotated[ExactMatchConfig, Tag("exact_match")]
    | Annotated[FormatConfig, Tag("format")]
    | Annotated[CountdownConfig, Tag("countdown")]
    | Annotated[CustomConfig, Tag("custom")]
    | Annotated[JudgeConfig, Tag("judge")]
    | Annotated[RewardModelConfig, Tag("reward_model")]
    | Annotated[ProcessRewardConfig, Tag("process_reward")],
    Discriminator(reward_kind),
]
