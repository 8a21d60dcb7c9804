"""The last deadline of a blocking call into torch.distributed, for calls that outlast their own timeout.

NCCL can wait in C++ beyond every timeout that torch knows, for example while it connects. Nothing ends such a
thread but the end of its process.
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from slipstream.weights.threads import in_thread

T = TypeVar("T")

LAST = 2.0
"""The last deadline, in timeouts of a single wait: the call's own timeout comes first."""
EXIT_STATUS = 70
POLL_SECONDS = 0.25


class CallStuck(RuntimeError):
    """A call did not return by its last deadline; its thread is left behind."""


class Progress:
    """When a call last got further; the call says so by calling this, from any thread."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    def __call__(self) -> None:
        self._at = time.monotonic()

    def silent_seconds(self) -> float:
        """Since the call last got further."""
        return time.monotonic() - self._at


def no_progress() -> None:
    """For a caller that watches nothing."""


async def watched(call: Callable[[Progress], T], *, timeout_seconds: float, what: str) -> T:
    """The result of `call`, which runs in a thread of its own and reports its progress.

    `timeout_seconds`: what the call allows for one of its waits. Errors: those of the call, and CallStuck
    after LAST times that without progress.
    """
    progress, seconds = Progress(), LAST * timeout_seconds
    waiting = asyncio.wrap_future(in_thread(partial(call, progress), what))
    while (left := seconds - progress.silent_seconds()) > 0:
        await asyncio.wait([waiting], timeout=left)
        if waiting.done():
            return waiting.result()
    waiting.add_done_callback(_forget)
    raise CallStuck(f"{what} made no progress for {seconds:g} s")


@contextmanager
def or_exit(timeout_seconds: float, what: str) -> Iterator[Progress]:
    """Around a blocking call: without progress for LAST times the timeout, this process ends at once.

    For a process whose parent sees that and starts another, such as that of an engine.
    """
    progress, over = Progress(), threading.Event()
    seconds = LAST * timeout_seconds

    def watch() -> None:
        while not over.wait(POLL_SECONDS):
            if progress.silent_seconds() > seconds:
                print(f"slipstream: {what} made no progress for {seconds:g} s", file=sys.stderr, flush=True)
                os._exit(EXIT_STATUS)

    threading.Thread(target=watch, name=f"last deadline of {what}", daemon=True).start()
    try:
        yield progress
    finally:
        over.set()


def _forget(late: asyncio.Future[T]) -> None:
    """A result that comes after the last deadline interests nobody."""
    if not late.cancelled():
        late.exception()
