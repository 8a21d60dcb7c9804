"""Bounded waits on Redis, and steps that leave nothing behind when the caller goes away."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
FIRST_PAUSE_SECONDS = 0.005
LONGEST_PAUSE_SECONDS = 0.03


async def poll(
    attempt: Callable[[], Awaitable[tuple[T, ...]]], *, seconds: float, stop: asyncio.Event
) -> tuple[T, ...]:
    """Try until the answer is not empty, `seconds` have passed, or the pod stops; tries at least once."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    pause = FIRST_PAUSE_SECONDS
    while not (found := await attempt()):
        left = deadline - loop.time()
        if left <= 0 or stop.is_set():
            break
        await asyncio.sleep(min(pause, left))
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    return found


async def finish_or_undo(step: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[object]]) -> T:
    """Run a step to its end even if the caller goes away during it; then undo it."""
    task = asyncio.ensure_future(step)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await undo(await task)
        raise
