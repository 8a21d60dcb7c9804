"""Rewards by simple rules on the text of an answer."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from slipstream.config.rewards.base import Facts, RewardSection

TagName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$")]


class CountdownConfig(RewardSection):
    """1 when the expression reaches the target with the given numbers, each at most once; else 0."""

    facts = Facts(
        scorer="slipstream.verifier.rewards.countdown:countdown_reward",
        scores="binary",
        ground_truth="countdown",
        runs_in="loop",
        libraries=(),
        sees_group=False,
        reads_lengths=False,
        scores_steps=False,
    )

    kind: Literal["countdown"] = "countdown"
    """Name of the kind."""


class FormatConfig(RewardSection):
    """1 when the completion has the form that `pattern`, `tags` and `boxed` ask for; else 0."""

    facts = Facts(
        scorer="slipstream.verifier.rewards.format:format_match",
        scores="binary",
        ground_truth="none",
        runs_in="loop",
        libraries=(),
        sees_group=False,
        reads_lengths=False,
        scores_steps=False,
    )

    kind: Literal["format"] = "format"
    """Name of the kind."""
    pattern: str | None = None
    """Regular expression that the whole completion must match."""
    tags: tuple[TagName, ...] = ()
    """Tags that must each enclose some text, exactly once and in this order: [think, answer]."""
    boxed: bool = False
    """Whether there must be exactly one \\boxed{}, closed and not empty."""

    @model_validator(mode="after")
    def something_asked(self) -> "FormatConfig":
        if self.pattern is None and not self.tags and not self.boxed:
            raise ValueError("pattern: Field required, or tags, or boxed: nothing is asked of the form")
        return self
