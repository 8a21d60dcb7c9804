"""Every kind of reward, and how one is made of its configuration."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slipstream.config import ConfigError
from slipstream.config.rewards import RewardSection
from slipstream.verifier.adapters import EachAnswer
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Reward
from slipstream.verifier.rewards.code_tests import code_tests
from slipstream.verifier.rewards.countdown import countdown
from slipstream.verifier.rewards.custom import custom
from slipstream.verifier.rewards.exact_match import exact_match
from slipstream.verifier.rewards.format import format_match
from slipstream.verifier.rewards.json_schema import json_schema
from slipstream.verifier.rewards.judge import judge
from slipstream.verifier.rewards.length import length
from slipstream.verifier.rewards.math import math
from slipstream.verifier.rewards.models import process_reward, reward_model
from slipstream.verifier.rewards.no_repeat import NoRepeat
from slipstream.verifier.rewards.numeric_match import numeric_match
from slipstream.verifier.rewards.texts import of_texts

# kind → the reward of one configured component. A factory starts nothing and imports nothing heavy.
# Errors of a factory: ValueError, `key: what is wrong` for one key or what is wrong.
REWARDS: Mapping[str, Callable[[Any, Resources], Reward]] = {
    "exact_match": lambda config, with_: exact_match(config),
    "countdown": lambda config, with_: EachAnswer(countdown),
    "format": format_match,
    "custom": custom,
    "numeric_match": lambda config, with_: numeric_match(config),
    "math": math,
    "json_schema": json_schema,
    "length": lambda config, with_: length(config),
    "language_consistency": lambda config, with_: of_texts(
        "language_consistency", config, with_, scripts=list(config.scripts)
    ),
    "repetition": lambda config, with_: of_texts("repetition", config, with_, ngram=config.ngram),
    "no_repeat": lambda config, with_: NoRepeat(config),
    "diversity": lambda config, with_: of_texts("diversity", config, with_, ngram=config.ngram),
    "code_tests": code_tests,
    "judge": judge,
    "reward_model": reward_model,
    "process_reward": process_reward,
}


def bind_rewards(configs: Sequence[RewardSection], resources: Resources) -> dict[str, Reward]:
    """The configured rewards by name, in order, those aside that the policy gives itself in a rollout.

    Errors: ConfigError naming the reward at fault.
    """
    bound: dict[str, Reward] = {}
    for position, config in enumerate(configs):
        if config.judged_by_policy:
            continue
        key = f"rewards.{position}"
        if config.name in bound:
            raise ConfigError(f"{key}.name: `{config.name}` is configured twice")
        try:
            bound[config.name] = REWARDS[config.kind](config, resources)
        except ValueError as error:
            raise ConfigError(f"{key}: {config.name}: {error}") from error
    return bound
