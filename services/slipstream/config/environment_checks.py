"""Checks of an environment against the rest of a run."""

from collections.abc import Callable, Iterator
from typing import Final

from slipstream.config.data import CustomEnvironment
from slipstream.config.problem import Problem
from slipstream.config.rewards import EnvironmentRewardConfig
from slipstream.config.schema import RunConfig
from slipstream.config.stages import StepLabelsStage

KEY: Final = "data.environment"


def _rewards(config: RunConfig) -> Iterator[Problem]:
    if isinstance(config.data.environment, CustomEnvironment):
        return
    for position, reward in enumerate(config.rewards):
        if isinstance(reward, EnvironmentRewardConfig):
            yield Problem(
                key=f"rewards.{position}.kind",
                reason=f"is `environment`, and {KEY} is `single_turn`, which gives no rewards",
                remedy=f"name your environment in {KEY}, or take another reward",
            )


def _turns(config: RunConfig) -> Iterator[Problem]:
    environment, budget = config.data.environment, config.rollout.max_new_tokens
    if isinstance(environment, CustomEnvironment) and (environment.turn_tokens or 0) > budget:
        yield Problem(
            key=f"{KEY}.turn_tokens",
            reason=f"is {environment.turn_tokens}, and a whole completion has at most {budget} tokens "
            "(rollout.max_new_tokens)",
            remedy="lower it, or raise rollout.max_new_tokens to the tokens of all turns and observations",
        )


def _plain_answers(config: RunConfig) -> Iterator[Problem]:
    """Check settings that need the text of an answer to be the text of its tokens."""
    if not isinstance(config.data.environment, CustomEnvironment):
        return
    for section in ("rollout", "evaluation"):
        if getattr(config, section).sampling == "verbalized":
            yield Problem(
                key=f"{section}.sampling",
                reason=f"is `verbalized`, and {KEY} is `custom`: an episode has no candidates to choose from",
                remedy="set it to `plain`",
            )
    if config.algorithm.supervision == "process":
        yield Problem(
            key="algorithm.supervision",
            reason=f"is `process`, and {KEY} is `custom`: the steps of an answer that the environment sets "
            "are no tokens of the completion",
            remedy="set it to `outcome`",
        )
    if any(isinstance(stage, StepLabelsStage) for stage in config.stages):
        yield Problem(
            key=KEY,
            reason="is `custom`, and a stage `step_labels` continues answers without their environment",
            remedy="set it to `single_turn`",
        )


ENVIRONMENT_CHECKS: Final[tuple[Callable[[RunConfig], Iterator[Problem]], ...]] = (
    _rewards,
    _turns,
    _plain_answers,
)
