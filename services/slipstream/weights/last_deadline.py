"""A last deadline for blocking calls into torch.distributed, which may exceed their own timeout.

NCCL can block in C++ beyond all timeouts of torch, for example while it connects. A thread blocked there
ends only with its process.
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
"""The last deadline, in timeouts of a single wait; above 1, so that the call's own timeout comes first."""
EXIT_STATUS = 70
POLL_SECONDS = 0.25


class CallStuck(RuntimeError):
    """A call made no progress until its last deadline; its thread still runs."""


class Progress:
    """The time of the last progress of a call. The call reports progress by calling this, from any thread."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    def __call__(self) -> None:
        self._at = time.monotonic()

    def silent_seconds(self) -> float:
        """Return the seconds since the last progress."""
        return time.monotonic() - self._at


def no_progress() -> None:
    """Do nothing: the `progress` of callers without a last deadline."""


async def watched(call: Callable[[Progress], T], *, timeout_seconds: float, what: str) -> T:
    """Run `call` in a thread of its own, and return its result.

    `timeout_seconds`: timeout of a single wait of the call. Errors: those of the call, and CallStuck after
    LAST times that timeout without progress.
    """
    progress, seconds = Progress(), LAST * timeout_seconds
    waiting = asyncio.wrap_future(in_thread(partial(call, progress), what))
    waiting.add_done_callback(_forget)  # its caller may be cancelled
    while (left := seconds - progress.silent_seconds()) > 0:
        await asyncio.wait([waiting], timeout=left)
        if waiting.done():
            return waiting.result()
    raise CallStuck(f"{what} made no progress for {seconds:g} s")


@contextmanager
def or_exit(timeout_seconds: float, what: str) -> Iterator[Progress]:
    """Exit the process if the block makes no progress for LAST times the timeout.

    For a process that its parent restarts, such as an engine's or that of a rank of the learner.
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
    """Retrieve the exception of an abandoned call, so that asyncio does not log it."""
    if not late.cancelled():
        late.exception()
