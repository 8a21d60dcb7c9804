"""Make the configured rewards of a verifier."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final, cast

from slipstream.config import ConfigError, rewards
from slipstream.functions import load_function
from slipstream.verifier import missing_resource, reward
from slipstream.verifier.resources import Resources

HOW_TO_INSTALL: Final = "pip install '.[verifier]' in a clone of Slipstream"
HOW_TO_INSTALL_TORCH: Final = (
    "pip install '.[reward-model]' in a clone of Slipstream, "
    "or in a pod the image of docker/verifier.Dockerfile (verifier.image of the chart)"
)


def make_reward(config: rewards.RewardSection, resources: Resources) -> reward.Reward:
    """Return the reward of one configured component. It starts no process yet: `resources.start` does.

    Errors: ValueError for wrong arguments; MissingResource if a library, a file or a model is missing.
    """
    _require_libraries(config.facts)
    assert config.facts.scorer is not None, f"{config.kind}: an actor computes it"
    return cast(reward.Reward, load_function(config.facts.scorer)(config, resources))


def bind_rewards(configs: Sequence[rewards.RewardSection], resources: Resources) -> dict[str, reward.Reward]:
    """Return the configured rewards by name, in order, without those that actors compute.

    Errors: ConfigError naming the reward at fault.
    """
    bound: dict[str, reward.Reward] = {}
    for position, config in enumerate(configs):
        if not config.facts.by_verifier:
            continue
        key = f"rewards.{position}"
        if config.name in bound:
            raise ConfigError(f"{key}.name: `{config.name}` is configured twice")
        try:
            bound[config.name] = make_reward(config, resources)
        except ValueError as error:
            raise ConfigError(f"{key}: {config.name}: {error}") from error
    return bound


def _require_libraries(facts: rewards.Facts) -> None:
    missing = [name for name in facts.libraries if find_spec(name) is None]
    if missing:
        how = HOW_TO_INSTALL_TORCH if facts.runs_in == "model_process" else HOW_TO_INSTALL
        raise missing_resource.MissingResource(f"needs {' and '.join(missing)}: {how}")
