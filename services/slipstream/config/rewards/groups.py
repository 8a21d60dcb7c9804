"""Which rewards look at all answers to a prompt at a time."""

from typing import Final

from slipstream.config.rewards.base import RewardSection

OF_GROUPS: Final = frozenset({"no_repeat", "diversity"})


def sees_group(reward: RewardSection) -> bool:
    """Whether a score depends on the other answers of the group."""
    return reward.kind in OF_GROUPS or bool(getattr(reward, "group", False))
