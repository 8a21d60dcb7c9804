"""Checks of the sources of a mixture: their rewards, their accuracy, and the conditions of rewards."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from slipstream.algorithms.resolve import nearest_name
from slipstream.config import data, rewards, schema, stages
from slipstream.config.problem import Problem
from slipstream.config.sources import Source, sources


def _conditions(config: schema.RunConfig) -> Iterator[Problem]:
    """Check that the condition of a reward names sources of the run."""
    for position, reward in enumerate(config.rewards):
        if reward.when is None:
            continue
        key = f"rewards.{position}.when"
        if not isinstance(config.data, data.MixtureData):
            yield Problem(
                key=key,
                reason="names sources, and data is no mixture: the reward applies to every prompt",
                remedy="leave it out",
            )
            continue
        for name in _unknown_sources(config, reward):
            yield _unknown_source(name, key, data.source_names(config.data))


def _unknown_sources(config: schema.RunConfig, reward: rewards.RewardConfig) -> list[str]:
    """Return the names in the condition of a reward that no source has."""
    names = reward.when.source if reward.when else ()
    return [name for name in names if name not in data.source_names(config.data)]


def _unknown_source(name: str, key: str, names: Sequence[str]) -> Problem:
    near = nearest_name(name, names)
    meant = f"did you mean `{near}`? Else name" if near else "name"
    return Problem(
        key=f"{key}.source",
        reason=f"has {name!r}, and the sources of data.of are {', '.join(names)}",
        remedy=f"{meant} one of them, or give a source this `name`",
    )


def _each_source(config: schema.RunConfig) -> Iterator[Problem]:
    if not isinstance(config.data, data.MixtureData):
        return
    if any(_unknown_sources(config, reward) for reward in config.rewards):
        return  # a source may have no reward only because `when` misspells its name
    for source in sources(config):
        if not any(reward.weight for reward in source.rewards):
            yield Problem(
                key=source.key,
                reason=f"no reward with a weight other than 0 applies to the source {source.name}, so there "
                "is nothing to learn from it",
                remedy=f"add {source.name} to the `when.source` of a reward, or leave the source out",
            )
        else:
            yield from _accuracy(source, config)


def _accuracy(source: Source, config: schema.RunConfig) -> Iterator[Problem]:
    """Check that the accuracy of a source is the mean of a reward that applies to it."""
    own = source.data.evaluation_reward
    key, names = f"{source.key}.evaluation_reward", [reward.name for reward in source.rewards]
    exists = source.evaluation_reward in [reward.name for reward in config.rewards]
    if source.evaluation_reward not in names and (own is not None or exists):
        yield Problem(
            key="evaluation.reward" if own is None else key,
            reason=f"is `{source.evaluation_reward}`, which does not apply to the source {source.name} "
            f"(its rewards: {', '.join(names)})",
            remedy=f"set {key} to `{names[0]}`" if len(names) == 1 else f"set {key} to one of them",
        )
    elif own not in (None, config.evaluation.reward) and _samples_first(config):
        yield Problem(
            key=key,
            reason=f"is `{own}`, and a stage of the kind {config.stages[0].kind} judges the answers of all "
            "sources by evaluation.reward",
            remedy="leave it out, and let evaluation.reward be a reward of all sources",
        )


def _samples_first(config: schema.RunConfig) -> bool:
    return any(isinstance(stage, stages.SampledStage) for stage in config.stages)


def _unused_environment(config: schema.RunConfig) -> Iterator[Problem]:
    named = "environment" in config.data.model_fields_set
    used = any(source.environment_key == "data.environment" for source in sources(config))
    if named and not used:
        yield Problem(
            key="data.environment",
            reason="is set, and every source of the mixture has an environment of its own",
            remedy="leave it out",
        )


CHECKS: Final[tuple[Callable[[schema.RunConfig], Iterator[Problem]], ...]] = (
    _conditions,
    _each_source,
    _unused_environment,
)
