"""Runs a blocking call in a thread of its own, so that its caller can stop waiting for it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_thread(call: Callable[[], T], name: str, *, daemon: bool = False) -> Future[T]:
    """Return a future of the call's result. Unless `daemon`, the process waits for the thread when it exits.

    Use `daemon` only for a call that may hang: a daemon thread inside torch at interpreter exit aborts the
    process.
    """
    result: Future[T] = Future()
    threading.Thread(target=_fulfil, args=(result, call), name=name, daemon=daemon).start()
    return result


def _fulfil(result: Future[T], call: Callable[[], T]) -> None:
    try:
        result.set_result(call())
    except Exception as error:  # Future.result raises it again
        result.set_exception(error)
