"""Checks of the shaping against the rest of a run: group sizes, baselines, prompts that are drawn only
once."""

from collections.abc import Callable, Iterator
from typing import Final

from slipstream.algorithms.spec import Ema, Gae, Gdpo, ReinforcePp
from slipstream.config.data import GeneratedData
from slipstream.config.problem import Problem
from slipstream.config.schema import RunConfig
from slipstream.config.sources import sources


def _adaptive_group(config: RunConfig) -> Iterator[Problem]:
    aggregation = config.algorithm.resolved_aggregation()
    if config.algorithm.declared_shaping().adaptive_group is not None and aggregation != "prompt_mean":
        yield Problem(
            key="algorithm.aggregation",
            reason=f"is {aggregation} with shaping.adaptive_group: the weight of a prompt grows with the "
            "size of its group",
            remedy="set prompt_mean",
            severity="note",
        )


def _dynamic_sampling(config: RunConfig) -> Iterator[Problem]:
    if config.algorithm.declared_shaping().dynamic_sampling is None:
        return
    advantage = config.algorithm.resolved_advantage()
    if config.rollout.group_size == 1:
        if not advantage.needs_groups:  # another check reports the group size of such an advantage
            yield Problem(
                key="algorithm.shaping.dynamic_sampling",
                reason="needs rewards that differ in a group, and rollout.group_size is 1: every group "
                "would be dropped",
                remedy="set algorithm.shaping to null, or rollout.group_size to 2 or more",
            )
    elif isinstance(advantage, Ema | Gae) or (
        isinstance(advantage, ReinforcePp) and not advantage.group_mean
    ):
        yield Problem(
            key="algorithm.shaping.dynamic_sampling",
            reason=f"drops groups of equal rewards, which the advantage {advantage.kind} learns from: its "
            "baseline is not the group's",
            remedy="set algorithm.shaping to null, or to one without it",
            severity="note",
        )
    elif isinstance(advantage, Gdpo) and _components(config) > 1:
        yield Problem(
            key="algorithm.shaping.dynamic_sampling",
            reason="drops groups whose total is equal, and gdpo learns from components that differ below it",
            remedy="set algorithm.shaping to null, or to one without it",
            severity="note",
        )
    elif config.algorithm.supervision == "process":
        yield Problem(
            key="algorithm.shaping.dynamic_sampling",
            reason="drops groups whose totals are equal, and rewards by step may differ below them",
            remedy="set algorithm.shaping to null, or to one without it",
            severity="note",
        )


def _components(config: RunConfig) -> int:
    """Return how many rewards gdpo normalises at most for a completion; soft_overlong counts as one."""
    weighted = max(sum(reward.weight != 0 for reward in source.rewards) for source in sources(config))
    return weighted + (config.algorithm.declared_shaping().soft_overlong is not None)


def _pass_rates(config: RunConfig) -> Iterator[Problem]:
    if not isinstance(config.data, GeneratedData):
        return
    distinct, drawn = config.data.distinct_prompts, config.learner.steps * config.learner.groups_per_step
    if config.algorithm.declared_shaping().remembers_pass_rates and distinct > drawn:
        yield Problem(
            key="algorithm.shaping",
            reason=f"remembers the pass rate of each prompt, and {drawn:,} draws from some {distinct:,} "
            "prompts hardly ever repeat one",
            remedy="use it with a data file, or a smaller task",
            severity="note",
        )


def _length_punished_twice(config: RunConfig) -> Iterator[Problem]:
    for position, reward in enumerate(config.rewards):
        if reward.kind == "length" and config.algorithm.declared_shaping().soft_overlong is not None:
            yield Problem(
                key=f"rewards.{position}",
                reason="punishes length, and algorithm.shaping.soft_overlong of this run does so too",
                remedy="leave the reward out, or set algorithm.shaping to one without soft_overlong",
            )


CHECKS: Final[tuple[Callable[[RunConfig], Iterator[Problem]], ...]] = (
    _adaptive_group,
    _dynamic_sampling,
    _pass_rates,
    _length_punished_twice,
)
