"""Bounded polling of Redis, and steps that are undone when the caller cancels the call."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
FIRST_PAUSE_SECONDS = 0.005
LONGEST_PAUSE_SECONDS = 0.03


async def poll(
    attempt: Callable[[], Awaitable[tuple[T, ...]]], *, seconds: float, stop: asyncio.Event
) -> tuple[T, ...]:
    """Repeat `attempt` until its result is not empty, `seconds` have passed, or `stop` is set; at least
    once."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    pause = FIRST_PAUSE_SECONDS
    while not (results := await attempt()):
        seconds_left = deadline - loop.time()
        if seconds_left <= 0 or stop.is_set():
            break
        await asyncio.sleep(min(pause, seconds_left))
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    return results


async def finish_or_undo(step: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[object]]) -> T:
    """Run a step to its end. If the caller is cancelled meanwhile, undo the finished step.

    The shielded task outlives the cancellation; a TaskGroup would cancel it.
    """
    task = asyncio.ensure_future(step)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await undo(await task)
        raise
