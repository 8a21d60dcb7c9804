"""Looks for rollouts: replay lists those whose heartbeats arrive."""

import asyncio

import grpc

from slipstream.actor.replay_client import ReplayClient
from slipstream.actor.rollouts import Rollouts
from slipstream.rpc.errors import SlipstreamError
from slipstream.telemetry.logs import Log

LOOK_SECONDS = 1.0
FIRST_LOOK_SECONDS = 0.2
"""Interval while no rollout is known."""


async def keep_looking(replay: ReplayClient, rollouts: Rollouts, log: Log) -> None:
    """Update the rollouts every second, until cancelled. While replay is silent they stay as they are."""
    while True:
        try:
            listed = await replay.rollouts()
        except (SlipstreamError, grpc.aio.AioRpcError) as error:
            log.warning("rollouts not listed", error=str(error))
        else:
            rollouts.update(listed)
        await asyncio.sleep(LOOK_SECONDS if rollouts.capacity else FIRST_LOOK_SECONDS)
