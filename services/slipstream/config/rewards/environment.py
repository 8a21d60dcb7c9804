"""A reward that the environment of an episode gives."""

from typing import Literal

from slipstream.config.rewards.base import Facts, RewardSection


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
