"""The task that sends the heartbeats of an actor."""

import asyncio
from types import SimpleNamespace
from typing import Any

from slipstream.actor.heartbeat import Heartbeat
from slipstream.telemetry.throughput import Throughput


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
            throughput=Throughput(lambda: 0.0),
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


def test_each_beat_has_the_completions_per_second() -> None:
    async def scenario() -> list[Any]:
        beats: list[Any] = []
        now, completions, third = [100.0], [0.0], asyncio.Event()

        async def renew(*_: Any, throughput: float | None, **__: Any) -> list[Any]:
            beats.append(throughput)
            now[0], completions[0] = now[0] + 4.0, completions[0] + 10.0
            if len(beats) == 3:
                third.set()
            return []

        heart = Heartbeat(
            replay=SimpleNamespace(renew=renew),  # type: ignore[arg-type]
            served=SimpleNamespace(version=1, serving=True),  # type: ignore[arg-type]
            seconds=0.0,
            held=lambda: [],
            lose=lambda _: None,
            throughput=Throughput(lambda: completions[0], clock=lambda: now[0]),
            log=SimpleNamespace(info=print, warning=print),  # type: ignore[arg-type]
        )
        beating = asyncio.create_task(heart.run())
        await third.wait()
        beating.cancel()
        await asyncio.wait((beating,), timeout=5)
        return beats

    assert asyncio.run(scenario())[:3] == [None, 2.5, 2.5]
