"""Rewards that read whole texts: `language_consistency`, `repetition` and `diversity`.

Their functions run in the pool's child processes, a group in one call, so that a long text does not block the
event loop. They are in modules of their own, so that a child need not import the verifier.
"""

from typing import Any

from slipstream.config import rewards
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Reward
from slipstream.verifier.workers.scorer import PoolScorer

SECONDS = 10.0
"""Deadline of a group. An answer takes milliseconds, so a late group is an error and no answer's fault."""


def language_consistency(config: rewards.LanguageConsistencyConfig, resources: Resources) -> Reward:
    """Make the reward `language_consistency`."""
    return _scored_in_pool("language_consistency:score", config, resources, scripts=list(config.scripts))


def repetition(config: rewards.RepetitionConfig, resources: Resources) -> Reward:
    """Make the reward `repetition`."""
    return _scored_in_pool("ngrams:repetition", config, resources, ngram=config.ngram)


def diversity(config: rewards.DiversityConfig, resources: Resources) -> Reward:
    """Make the reward `diversity`."""
    return _scored_in_pool("ngrams:diversity", config, resources, ngram=config.ngram)


def _scored_in_pool(
    function: str, config: rewards.RewardSection, resources: Resources, **arguments: Any
) -> Reward:
    """Return a reward that calls `module:function` of this package in a child process."""
    return PoolScorer(
        f"slipstream.verifier.rewards.{function}",
        name=config.name,
        seconds=SECONDS,
        resources=resources,
        arguments=arguments,
        overrun="error",
    )
