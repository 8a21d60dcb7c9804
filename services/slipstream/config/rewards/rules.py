"""Rewards by simple rules on the text of an answer."""

from typing import Literal

from slipstream.config.rewards.base import RewardSection


class CountdownConfig(RewardSection):
    """1 when the expression reaches the target with the given numbers, each at most once; else 0."""

    kind: Literal["countdown"] = "countdown"
    """Name of the kind."""


class FormatConfig(RewardSection):
    """1 when the whole completion matches a pattern; else 0."""

    kind: Literal["format"] = "format"
    """Name of the kind."""
    pattern: str
    """Regular expression that the whole completion must match."""
