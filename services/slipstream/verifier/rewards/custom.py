"""A user's own function as a reward."""

from slipstream.config.rewards import CustomConfig
from slipstream.functions import named_function
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Reward
from slipstream.verifier.workers.scorer import PoolScorer


def custom(config: CustomConfig, resources: Resources) -> Reward:
    """The reward that calls it in a child. Errors: ValueError for an entry point that is not installed."""
    function = PoolScorer(
        named_function(config.function, entry_point=config.entry_point),
        name=config.name,
        seconds=config.timeout_seconds,
        resources=resources,
        arguments=config.arguments,
        overrun="error",
    )
    return function if config.group else function.each()
