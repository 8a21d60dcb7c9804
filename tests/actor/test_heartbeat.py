"""The task that sends the heartbeats of an actor."""

import asyncio
from types import SimpleNamespace
from typing import Any

from slipstream.actor.heartbeat import Heartbeat


def test_a_cancellation_at_the_moment_of_a_due_beat_ends_the_heartbeat() -> None:
    async def scenario() -> None:
        beaten = asyncio.Event()

        async def renew(*_: Any, **__: Any) -> list[Any]:
            beaten.set()
            return []

        heart: Any = Heartbeat(
            replay=SimpleNamespace(renew=renew),  # type: ignore[arg-type]
            served=SimpleNamespace(version=1, serving=True),  # type: ignore[arg-type]
            seconds=60.0,
            held=lambda: [],
            lose=lambda _: None,
            log=SimpleNamespace(info=print, warning=print),  # type: ignore[arg-type]
        )
        beating = asyncio.create_task(heart.run())
        await beaten.wait()
        for _ in range(5):  # until it waits for the next beat
            await asyncio.sleep(0)
        heart.beat_soon()
        await asyncio.sleep(0)  # the event is set, and the heartbeat has not resumed yet
        beating.cancel()
        await asyncio.wait((beating,), timeout=5)
        assert beating.cancelled()

    asyncio.run(scenario())
