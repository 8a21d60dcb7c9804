"""The sources of a run: the environment, the share of the groups and the rewards of each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from slipstream.config.data import MixtureData, TaskData, parts, source_names
from slipstream.config.environments import EnvironmentConfig, PythonTool, python_tools
from slipstream.config.rewards import RewardConfig
from slipstream.config.schema import RunConfig

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source of a mixture, or the only source of a run."""

    name: str
    key: str
    """Key of its section: `data.of.1`, or `data` without a mixture."""
    data: TaskData
    share: float
    """Share of the groups, from 0 to 1."""
    environment: EnvironmentConfig
    environment_key: str
    """Key of the environment, which may be that of the mixture."""
    rewards: tuple[RewardConfig, ...]
    """The rewards that apply, in the order of the configuration."""
    evaluation_reward: str
    """Name of the reward whose mean is the accuracy."""


class UnknownSource(ValueError):
    """A prompt is of a source that the run does not have."""


class BySource(Generic[Value]):
    """A value for each source of a run. Invariant: a run with one source gives its value to every prompt."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = dict(values)

    def of(self, source: str) -> Value:
        """Return the value of the source of a prompt. Errors: UnknownSource."""
        if source in self._values:
            return self._values[source]
        if len(self._values) == 1:
            return next(iter(self._values.values()))
        raise UnknownSource(
            f"the prompt is of the source {source!r}, and the sources of this run are "
            f"{', '.join(self._values)}; all processes of a run need the same configuration"
        )

    def all(self) -> tuple[Value, ...]:
        """Return the values in the order of the sources."""
        return tuple(self._values.values())


def sources(config: RunConfig) -> tuple[Source, ...]:
    """Return the sources of a run, in order; one without a mixture."""
    names = source_names(config.data)
    return tuple(_source(config, position, name) for position, name in enumerate(names))


def _source(config: RunConfig, position: int, name: str) -> Source:
    data, every = config.data, parts(config.data)
    part = every[position]
    key = f"data.of.{position}" if isinstance(data, MixtureData) else "data"
    shared = "environment" in data.model_fields_set and "environment" not in part.model_fields_set
    return Source(
        name=name,
        key=key,
        data=part,
        share=part.share / sum(each.share for each in every),
        environment=data.environment if shared else part.environment,
        environment_key=f"{'data' if shared else key}.environment",
        rewards=tuple(reward for reward in config.rewards if reward.applies_to(name)),
        evaluation_reward=part.evaluation_reward or config.evaluation.reward,
    )


def by_source(config: RunConfig, value: Callable[[Source], Value]) -> BySource[Value]:
    """Return a value for each source of a run."""
    return BySource({source.name: value(source) for source in sources(config)})


def applying_rewards(config: RunConfig) -> BySource[frozenset[str]] | None:
    """Return the names of the rewards that apply, by source; None if all rewards apply to every prompt."""
    if all(reward.when is None for reward in config.rewards):
        return None
    return by_source(config, lambda source: frozenset(reward.name for reward in source.rewards))


def python_tools_of(config: RunConfig) -> tuple[PythonTool, ...]:
    """Return the tools `python` of all environments of a run, for which verifiers need a sandbox."""
    return tuple(tool for source in sources(config) for tool in python_tools(source.environment))


def source_labels(config: RunConfig) -> tuple[str, ...]:
    """Return the names of the sources of a mixture, for metrics; none without a mixture."""
    return source_names(config.data) if isinstance(config.data, MixtureData) else ()
