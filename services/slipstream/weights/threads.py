"""Runs blocking calls in threads: one whose caller can stop waiting for it, and several at once."""

import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache, partial
from typing import TypeVar

import torch

from slipstream.processes.cores import local_ranks, usable_cores

T = TypeVar("T")
U = TypeVar("U")

MOST_THREADS = 8
"""More would share the bandwidth of the memory."""
BACKGROUND_NICENESS = 10
"""Niceness of threads that give way. Linux gives one of niceness 0 nine times as much of a core."""


def in_thread(
    call: Callable[[], T], name: str, *, daemon: bool = False, background: bool = False
) -> Future[T]:
    """Return a future of the call's result. Unless `daemon`, the process waits for the thread when it exits.

    Use `daemon` only for a call that may hang: a daemon thread inside torch at interpreter exit aborts the
    process. background: the thread, and those that it starts, give way to the others of the process.
    """
    result: Future[T] = Future()
    fulfil = partial(_fulfil, result, call, background)
    threading.Thread(target=fulfil, name=name, daemon=daemon).start()
    return result


def _fulfil(result: Future[T], call: Callable[[], T], background: bool) -> None:
    try:
        if background:
            _give_way()
        result.set_result(call())
    except Exception as error:  # Future.result raises it again
        result.set_exception(error)


def in_pool(call: Callable[[U], T], arguments: Iterable[U], *, background: bool = False) -> list[Future[T]]:
    """Begin to call with each argument, on several threads.

    Only what holds no lock of the interpreter runs at once. background: on threads that give way to the
    others of the process, and so on more of them than torch computes with. What a thread in the background
    calls is in the background in any case.
    """
    pool = _pool(background or getattr(_thread, "background", False))
    return [pool.submit(call, argument) for argument in arguments]


_thread = threading.local()


def _give_way() -> None:
    """Lower the priority of this thread to its end. On Linux only, where each thread has its own."""
    _thread.background = True
    if sys.platform == "linux":
        thread = threading.get_native_id()
        niceness = max(BACKGROUND_NICENESS, os.getpriority(os.PRIO_PROCESS, thread))  # less needs a privilege
        with suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, thread, niceness)


def results(running: Sequence[Future[T]]) -> list[T]:
    """Wait for all calls, and return their results. Errors: the first one."""
    wait(running)
    return [future.result() for future in running]


@cache
def _pool(background: bool) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(
        _threads(background),
        thread_name_prefix="weights",
        initializer=_give_way if background else None,
    )


def _threads(background: bool) -> int:
    """Return the number of threads: those of torch, and others where that takes no core from a computation.

    Threads in the background take none, and computation on a GPU leaves the cores idle. The ranks of one
    machine share its cores.
    """
    computing = torch.get_num_threads()
    if not background and not torch.cuda.is_available():
        return computing
    idle = min(usable_cores() // local_ranks(), MOST_THREADS)
    return max(idle, 1) if background else max(idle, computing)


os.register_at_fork(after_in_child=_pool.cache_clear)
