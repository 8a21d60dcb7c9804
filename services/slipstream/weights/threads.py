"""A call in a thread of its own, so that whoever waits for it can stop waiting."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_thread(call: Callable[[], T], name: str, *, daemon: bool = False) -> Future[T]:
    """What the call will return or raise. The process waits for the thread before it exits, unless `daemon`.

    A daemon that is in torch when the interpreter ends aborts the process: only for a call that may hang.
    """
    result: Future[T] = Future()
    threading.Thread(target=_fulfil, args=(result, call), name=name, daemon=daemon).start()
    return result


def _fulfil(result: Future[T], call: Callable[[], T]) -> None:
    try:
        result.set_result(call())
    except Exception as error:  # raised again by whoever waits for the result
        result.set_exception(error)
