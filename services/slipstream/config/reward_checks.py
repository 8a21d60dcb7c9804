"""Checks of rewards against each other and against the rest of a run."""

from collections import Counter
from collections.abc import Callable, Iterator
from math import ceil
from typing import Final

import regex  # type: ignore[import-untyped, unused-ignore]

from slipstream.config.problem import Problem
from slipstream.config.rewards import FormatConfig, RewardConfig, SelfJudgeConfig
from slipstream.config.schema import RunConfig
from slipstream.config.sources import sources

FEWEST_CORES: Final = 2
"""Fewest child processes of a verifier that starts one for each core."""


def _rewards(config: RunConfig) -> Iterator[Problem]:
    names = [reward.name for reward in config.rewards]
    if not any(reward.weight for reward in config.rewards):
        reason = "has no reward with a weight other than 0, so there is nothing to learn from"
        yield Problem(key="rewards", reason=reason, remedy="give a reward a weight")
    for name, times in Counter(names).items():
        if times > 1:
            reason = f"`{name}` is there {times} times, and a reward vector has one entry a name"
            yield Problem(key="rewards", reason=reason, remedy="keep one of them")
    measured = [source for source in sources(config) if source.data.evaluation_reward is None]
    if measured and config.evaluation.reward not in names:
        default = "" if "reward" in config.evaluation.model_fields_set else " by default"
        yield Problem(
            key="evaluation.reward",
            reason=f"is `{config.evaluation.reward}`{default}, which is not among the rewards "
            f"({', '.join(names)})",
            remedy="set it to the one whose mean is the accuracy"
            if len(names) > 1
            else f"set it to `{names[0]}`, whose mean is then the accuracy",
        )


def _of_each(config: RunConfig) -> Iterator[Problem]:
    for position, reward in enumerate(config.rewards):
        key = f"rewards.{position}"
        yield from _fits_the_data(config, reward, key)
        yield from _deadline(config, reward, key)
        yield from _hanging_group(config, reward, key)
        if isinstance(reward, FormatConfig):
            yield from _pattern(reward, key)
        if isinstance(reward, SelfJudgeConfig):
            yield from _anchored(config, reward, key)


def _fits_the_data(config: RunConfig, reward: RewardConfig, key: str) -> Iterator[Problem]:
    kinds = [source.data.kind for source in sources(config) if reward.applies_to(source.name)]
    others = [kind for kind in kinds if kind not in ("countdown", "file")]
    if reward.facts.ground_truth == "countdown" and others:
        reason = f"`countdown` cannot judge answers of the data `{others[0]}`"
        yield Problem(
            key=f"{key}.name", reason=reason, remedy="set `exact_match`, or data.kind to `countdown`"
        )
    if reward.kind == "exact_match" and "countdown" in kinds:
        reason = "`exact_match` accepts one expression, and countdown has many right ones"
        remedy = "use the reward `countdown`"
        yield Problem(key=f"{key}.name", reason=reason, remedy=remedy, severity="note")


def _deadline(config: RunConfig, reward: RewardConfig, key: str) -> Iterator[Problem]:
    seconds, patience = getattr(reward, "timeout_seconds", None), config.verifier.timeout_seconds
    if seconds is not None and seconds >= patience:
        yield Problem(
            key=f"{key}.timeout_seconds",
            reason=f"is {seconds:g}, and an actor waits {patience:g} s for a group: it would ask again "
            "before a slow answer is judged",
            remedy="set it well below verifier.timeout_seconds, or raise that",
            severity="note",
        )


def _hanging_group(config: RunConfig, reward: RewardConfig, key: str) -> Iterator[Problem]:
    """Check that a group whose answers all run into their deadlines is scored in the time that an actor
    waits."""
    children, group_size = config.verifier.workers or FEWEST_CORES, config.rollout.group_size
    seconds, at_once = reward.slowest_call(children=children, group_size=group_size)
    longest = seconds * ceil(group_size / at_once)
    patience = config.verifier.timeout_seconds * (config.verifier.retries + 1)
    if longest > patience:
        parallelism = f"{key}.concurrency" if reward.facts.runs_in == "endpoint" else "verifier.workers"
        yield Problem(
            key=f"{key}.timeout_seconds",
            reason=f"lets {group_size} answers that hang take {longest:g} s, {at_once} at a "
            f"time, and an actor gives up after {patience:g} s, before all of them are judged",
            remedy=f"lower it, or raise verifier.timeout_seconds, verifier.retries or {parallelism}",
            severity="note",
        )


def _pattern(reward: FormatConfig, key: str) -> Iterator[Problem]:
    try:
        regex.compile(reward.pattern)
    except (regex.error, MemoryError, RecursionError, OverflowError) as error:
        reason = f"is not a usable regular expression: {error or type(error).__name__}"
        yield Problem(key=f"{key}.pattern", reason=reason, remedy="correct it")


def _anchored(config: RunConfig, reward: SelfJudgeConfig, key: str) -> Iterator[Problem]:
    """Check that a policy which judges itself also gets rewards from others, in each source."""
    for source in sources(config):
        if not reward.applies_to(source.name):
            continue
        total = sum(abs(each.weight) for each in source.rewards)
        others = sum(abs(each.weight) for each in source.rewards if not each.facts.by_policy)
        if reward.weight and others < reward.anchor_share * total:
            where = "" if source.key == "data" else f" of the source {source.name}"
            yield Problem(
                key=f"{key}.weight",
                reason=f"leaves {others / total:.0%} of all weights{where} to rewards that others give, and "
                f"anchor_share is {reward.anchor_share:.0%}: the policy would learn to please itself",
                remedy="add a reward that is verified, or give one more weight",
            )
        if source.evaluation_reward == reward.name:
            own = source.data.evaluation_reward is not None
            yield Problem(
                key=f"{source.key}.evaluation_reward" if own else "evaluation.reward",
                reason=f"is `{reward.name}`, by which the policy judges its own held-out answers",
                remedy="name a reward that is verified",
            )


CHECKS: Final[tuple[Callable[[RunConfig], Iterator[Problem]], ...]] = (_rewards, _of_each)
