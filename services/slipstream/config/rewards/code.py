"""Rewards that other code computes: a function of the user, or the environment of an episode."""

from typing import Any, Literal

from pydantic import Field, model_validator

from slipstream.config.rewards.base import Facts, RewardSection


class CustomConfig(RewardSection):
    """The score that a function of your own returns.

    It is called as function(prompt, answer, **arguments), or with `group` as function(prompt, answers,
    **arguments), in a child process of the verifier.
    """

    facts = Facts(
        scorer="slipstream.verifier.rewards.custom:custom",
        scores="any",
        ground_truth="none",
        runs_in="pool",
        libraries=(),
        sees_group="group",
        reads_lengths=False,
        scores_steps=True,
    )

    kind: Literal["custom"] = "custom"
    """Name of the kind."""
    function: str | None = Field(None, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")
    """Where the function is: `package.module:function`."""
    entry_point: str | None = Field(None, min_length=1)
    """Instead of `function`: name of an entry point of the group `slipstream.rewards`."""
    group: bool = False
    """Whether a call gets all answers to a prompt, and returns a list of their scores."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the function by name."""
    timeout_seconds: float = Field(5.0, gt=0, le=3600)
    """Deadline of a call: of one answer, or with `group` of all answers to a prompt."""

    @model_validator(mode="after")
    def one_function(self) -> "CustomConfig":
        if (self.function is None) == (self.entry_point is None):
            raise ValueError("give either function (`module:function`) or entry_point, and not both")
        return self


class EnvironmentRewardConfig(RewardSection):
    """The value that the environment gave under the name of this reward: `episode.rewards[name]`, or the sum
    of its rewards by turn, `episode.reward(name, value)`.

    Needs an environment other than `single_turn` that gives a value of this name. Actors compute it. An
    episode without the value is withheld.
    """

    facts = Facts(
        scorer=None,
        scores="any",
        ground_truth="none",
        runs_in="environment",
        libraries=(),
        sees_group=False,
        reads_lengths=False,
        scores_steps=True,
    )

    kind: Literal["environment"] = "environment"
    """Name of the kind."""
