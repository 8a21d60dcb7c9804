"""Checks of actors against rollouts: groups against places, and the silence that counts as a loss."""

from collections.abc import Callable, Iterator

from slipstream.config.problem import Problem
from slipstream.config.schema import RunConfig

CHUNKS_OF_SILENCE = 2
"""Least number of a rollout's message intervals in `actor.silence_seconds`."""


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


def _silence(config: RunConfig) -> Iterator[Problem]:
    silence, interval = config.actor.silence_seconds, config.rollout.chunk_seconds
    if silence < CHUNKS_OF_SILENCE * interval:
        yield Problem(
            key="actor.silence_seconds",
            reason=f"is {silence:g} s, and a rollout sends a message every {interval:g} s "
            "(rollout.chunk_seconds): one late message would count as the loss of the rollout",
            remedy=f"set it to {CHUNKS_OF_SILENCE * interval:g} or more, or lower rollout.chunk_seconds",
        )


ACTOR_CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (_groups, _silence)
