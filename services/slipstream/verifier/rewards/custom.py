"""The reward `custom`: a function of the user."""

from slipstream.config.rewards import CustomConfig
from slipstream.functions import named_function
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Reward
from slipstream.verifier.workers.scorer import PoolScorer


def custom(config: CustomConfig, resources: Resources) -> Reward:
    """Make the reward, which calls the function in a child. Errors: ValueError for an unknown entry point."""
    function = PoolScorer(
        named_function(config.function, entry_point=config.entry_point),
        name=config.name,
        seconds=config.timeout_seconds,
        resources=resources,
        arguments=config.arguments,
        overrun="error",
    )
    return function if config.group else function.each()
