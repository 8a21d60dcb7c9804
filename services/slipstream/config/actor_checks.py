"""Checks of actors against rollouts: groups, places, the time of a group, and the silence that is a loss."""

import math
from collections.abc import Callable, Iterator

from slipstream.config.environments import SingleTurnEnvironment
from slipstream.config.problem import Problem
from slipstream.config.schema import RunConfig
from slipstream.config.sections.rollout import RolloutConfig
from slipstream.config.sources import Source, sources

CHUNKS_OF_SILENCE = 2
"""Least number of a rollout's message intervals in `actor.silence_seconds`."""

BUSY_TOKENS_PER_SECOND = 20.0
"""Tokens a second that a busy engine may be taken to sample for each request; most sample more."""


def places(config: RunConfig) -> int:
    """Return the most groups that all local rollouts sample at the same time."""
    return config.rollout.workers * config.rollout.max_groups


def held_groups(config: RunConfig) -> int:
    """Return the most groups that all local actors hold at the same time."""
    return config.actor.workers * config.actor.max_groups


def _groups(config: RunConfig) -> Iterator[Problem]:
    if held_groups(config) < places(config):
        actor, rollout = config.actor, config.rollout
        yield Problem(
            key="actor.max_groups",
            reason=f"the actors hold at most {held_groups(config)} groups (actor.max_groups "
            f"{actor.max_groups} × actor.workers {actor.workers}), and the rollouts have {places(config)} "
            f"places (rollout.max_groups {rollout.max_groups} × rollout.workers {rollout.workers}): "
            "places stay empty",
            remedy="raise actor.max_groups or actor.workers, or lower rollout.max_groups",
            severity="note",
        )


def _admission(config: RunConfig) -> Iterator[Problem]:
    groups, depth = config.learner.groups_per_step, config.staleness.pipeline_depth
    admitted = (depth + 1) * groups
    if places(config) > admitted:
        yield Problem(
            key="rollout.max_groups",
            reason=f"the rollouts have {places(config)} places, and at most {admitted} groups are in work "
            f"(learner.groups_per_step {groups} × (staleness.pipeline_depth {depth} + 1)): places stay empty",
            remedy="lower it, or raise learner.groups_per_step or staleness.pipeline_depth",
            severity="note",
        )


def _group_time(config: RunConfig) -> Iterator[Problem]:
    """Compare the time that a group has with the time that its longest answer takes in a busy engine.

    The answer is one of the source whose episodes may take the longest.
    """
    rollout = config.rollout
    slowest = max(sources(config), key=lambda source: _needed_seconds(rollout, source))
    needed = _needed_seconds(rollout, slowest)
    if rollout.engine == "emulated" or needed <= rollout.group_timeout_seconds:
        return
    beside, conversations = _seconds_beside_sampling(slowest), slowest.environment.most_conversations
    each = f" in each of {conversations} conversations ({slowest.environment_key}.max_segments)"
    tools = f" and {beside:g} s beside sampling ({slowest.environment_key}.seconds)" if beside else ""
    yield Problem(
        key="rollout.group_timeout_seconds",
        reason=f"is {rollout.group_timeout_seconds:g} s, and an answer of {rollout.max_new_tokens:,} tokens "
        f"(rollout.max_new_tokens){each if conversations > 1 else ''}{tools} takes {needed:,.0f} s in an "
        f"engine that samples {BUSY_TOKENS_PER_SECOND:g} tokens a second for each request: the longest "
        "answers may never be finished",
        remedy=f"set it to {math.ceil(needed)} or more, or lower rollout.max_new_tokens",
        severity="note",
    )


def _needed_seconds(rollout: RolloutConfig, source: Source) -> float:
    """Return the time of the longest episode of a source, whose conversations follow one another."""
    tokens = rollout.max_new_tokens * source.environment.most_conversations
    return tokens / BUSY_TOKENS_PER_SECOND + _seconds_beside_sampling(source)


def _seconds_beside_sampling(source: Source) -> float:
    environment = source.environment
    return 0.0 if isinstance(environment, SingleTurnEnvironment) else environment.seconds


def _silence(config: RunConfig) -> Iterator[Problem]:
    silence, interval = config.actor.silence_seconds, config.rollout.chunk_seconds
    if silence < CHUNKS_OF_SILENCE * interval:
        yield Problem(
            key="actor.silence_seconds",
            reason=f"is {silence:g} s, and a rollout sends a message every {interval:g} s "
            "(rollout.chunk_seconds): one late message would count as the loss of the rollout",
            remedy=f"set it to {CHUNKS_OF_SILENCE * interval:g} or more, or lower rollout.chunk_seconds",
        )


CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _groups,
    _admission,
    _group_time,
    _silence,
)
