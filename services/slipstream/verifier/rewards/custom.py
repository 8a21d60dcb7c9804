"""A user's own function as a reward."""

from slipstream.config.rewards import CustomConfig
from slipstream.functions import named_function
from slipstream.verifier.reward import Reward
from slipstream.verifier.surroundings import Surroundings
from slipstream.verifier.workers.judge import InWorkers


def custom(config: CustomConfig, surroundings: Surroundings) -> Reward:
    """The reward that calls it in a child. Errors: ValueError for an entry point that is not installed."""
    function = InWorkers(
        named_function(config.function, entry_point=config.entry_point),
        name=config.name,
        seconds=config.timeout_seconds,
        surroundings=surroundings,
        arguments=config.arguments,
        overrun="error",
    )
    return function if config.group else function.each()
