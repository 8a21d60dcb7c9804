"""Checks of an environment against the rest of a run."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from slipstream.algorithms.resolve import nearest_name
from slipstream.config import data, environments, rewards, schema, stages
from slipstream.config.problem import Problem
from slipstream.config.sources import Source, sources


def _rewards(source: Source, config: schema.RunConfig) -> Iterator[Problem]:
    """Check that the environment gives the values of the rewards of the kind `environment`."""
    names, key = source.environment.reward_names, source.environment_key
    for position, reward in enumerate(config.rewards):
        if not isinstance(reward, rewards.EnvironmentRewardConfig) or reward not in source.rewards:
            continue
        if not source.environment.has_turns:
            alone = source.key == "data"
            yield Problem(
                key=f"rewards.{position}.kind",
                reason=f"is `environment`, and {key}{_of(source)} is `single_turn`, which gives no rewards",
                remedy=f"name your environment in {key}, or take another reward"
                if alone
                else f"name the sources with a {reward.name} in rewards.{position}.when.source",
            )
        elif names is not None and reward.name not in names:
            yield _not_given(source, reward, names, f"rewards.{position}")


def _not_given(
    source: Source, reward: rewards.EnvironmentRewardConfig, names: Sequence[str], key: str
) -> Problem:
    """Return the problem of a reward whose value the environment of a source does not give."""
    name = reward.name
    near = nearest_name(name, names)
    only_here = source.key == "data" or (reward.when is not None and len(reward.when.source) == 1)
    meant = f"did you mean `{near}`? It gives" if near else "it gives"
    return Problem(
        key=f"{key}.name",
        reason=f"is {name!r}, and {source.environment_key}{_of(source)} is `{source.environment.kind}`, "
        "which gives no value of this name",
        remedy=f"{meant} {', '.join(names)}"
        + ("" if only_here else f"; or name the sources with a {name} in {key}.when.source"),
    )


def _of(source: Source) -> str:
    return "" if source.key == "data" else f" (source {source.name})"


def _turns(source: Source, config: schema.RunConfig) -> Iterator[Problem]:
    environment, budget = source.environment, config.rollout.max_new_tokens
    if isinstance(environment, environments.SingleTurnEnvironment):
        return
    if (environment.turn_tokens or 0) > budget:
        yield Problem(
            key=f"{source.environment_key}.turn_tokens",
            reason=f"is {environment.turn_tokens}, and a whole completion has at most {budget} tokens "
            "(rollout.max_new_tokens)",
            remedy="lower it, or raise rollout.max_new_tokens to the tokens of all turns and observations",
        )


def _plain_answers(source: Source, config: schema.RunConfig) -> Iterator[Problem]:
    """Check settings that need the text of an answer to be the text of its tokens."""
    if not source.environment.has_turns:
        return
    kind, key = source.environment.kind, source.environment_key
    for section in ("rollout", "evaluation"):
        if getattr(config, section).sampling == "verbalized":
            yield Problem(
                key=f"{section}.sampling",
                reason=f"is `verbalized`, and {key} is `{kind}`: an episode has no candidates to choose from",
                remedy="set it to `plain`",
            )
    yield from _rewards_by_step(source, config)
    if any(isinstance(stage, stages.StepLabelsStage) for stage in config.stages):
        yield Problem(
            key=key,
            reason=f"is `{kind}`, and a stage `step_labels` continues answers without their environment",
            remedy="set it to `single_turn`",
        )


def _rewards_by_step(source: Source, config: schema.RunConfig) -> Iterator[Problem]:
    """Check that the rewards by step are those of the environment: its answer is no text of tokens."""
    if config.algorithm.supervision == "outcome":
        return
    where = f"{source.environment_key}{_of(source)}"
    weighted = [reward for reward in source.rewards if reward.weight]
    for reward in weighted:
        if isinstance(reward, rewards.ProcessRewardConfig):
            yield Problem(
                key=f"rewards.{config.rewards.index(reward)}.kind",
                reason=f"is `process_reward`, and {where} is not `single_turn`: the steps of an answer that "
                "the environment sets are no tokens of the completion",
                remedy="take a reward of the kind environment, given by episode.reward(name, value)",
            )
    if not any(isinstance(reward, rewards.EnvironmentRewardConfig) for reward in weighted):
        yield Problem(
            key="algorithm.supervision",
            reason=f"is `process`, and {where} is not `single_turn`: only a reward of the kind `environment` "
            "can score its turns, and none has a weight",
            remedy="add one, and give it by episode.reward(name, value), or set supervision to `outcome`",
        )


def _imitation(config: schema.RunConfig) -> Iterator[Problem]:
    if config.warmup is not None and any(
        isinstance(part, data.SeedsData) for part in data.parts(config.data)
    ):
        yield Problem(
            key="warmup",
            reason="imitates demonstrations, and data of the kind `seeds` has none",
            remedy="leave it out, or run `slipstream warmup` on a file of demonstrations first",
        )


def _of_each_source(config: schema.RunConfig) -> Iterator[Problem]:
    problems = [
        problem
        for source in sources(config)
        for check in (_rewards, _turns, _plain_answers)
        for problem in check(source, config)
    ]
    yield from dict.fromkeys(problems)  # sources may share the environment of the mixture


CHECKS: Final[tuple[Callable[[schema.RunConfig], Iterator[Problem]], ...]] = (
    _of_each_source,
    _imitation,
)
