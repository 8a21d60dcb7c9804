"""Awaits code of the user, which may raise anything."""

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from contextlib import suppress
from pathlib import Path
from traceback import extract_tb
from typing import Any, Generic, TypeVar

from slipstream.records import without_surrogates

T = TypeVar("T")
END_SECONDS = 2.0
"""How long code of the user may go on after it was cancelled."""


class Interrupted(Exception):
    """Code of the user raised CancelledError without being cancelled, or an error outside of Exception."""


class _Droppable(Generic[T]):
    """Awaits code of the user until it ends, or until it is dropped."""

    def __init__(self, work: Awaitable[T]) -> None:
        self._work = work
        self.dropped = False
        """If set, the next error that reaches an await of the work ends this one, and closes the work."""
        self.closed = False
        """Whether the coroutine that awaits this was closed."""

    def __await__(self) -> Generator[Any, Any, T]:
        steps = _awaited(self._work)
        error: BaseException | None = None
        while True:
            try:
                waited = steps.send(None) if error is None else steps.throw(error)
            except StopIteration as ended:
                result: T = ended.value
                return result
            error = None
            try:
                yield waited
            except BaseException as raised:
                self.closed = isinstance(raised, GeneratorExit)
                if self.dropped or self.closed:
                    _close(steps)
                    raise
                error = raised


async def uninterrupted(work: Awaitable[T], *, end_seconds: float | None = None) -> T:
    """Return the result of the work, which runs in a task of its own.

    A cancellation of the caller cancels the work, once. `end_seconds`: how long it may go on then, before it
    is dropped at its next await; None: until it ends, for work that is not the user's. Errors: those of the
    work; Interrupted for an error that would otherwise end the task, or the event loop, of the caller;
    CancelledError if the caller was cancelled.
    """
    steps = _Droppable(work)
    task = asyncio.create_task(_converted(steps))
    task.add_done_callback(_read_error)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await _end_of(task, end_seconds)
        if not task.done():
            steps.dropped = True
            task.cancel()
        raise
    return task.result()


async def _end_of(task: asyncio.Task[Any], seconds: float | None) -> None:
    """Wait until a cancelled task ends, for some seconds at most; further cancellations change nothing."""
    loop = asyncio.get_running_loop()
    deadline = None if seconds is None else loop.time() + seconds
    while not task.done():
        left = None if deadline is None else deadline - loop.time()
        if left is not None and left <= 0:
            return
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task], timeout=left)


async def _converted(steps: _Droppable[T]) -> T:
    """Return the result of the work of this task. Errors: see `uninterrupted`."""
    task = asyncio.current_task()
    assert task is not None
    try:
        return await steps
    except Exception:
        raise
    except asyncio.CancelledError as error:
        if task.cancelling():
            raise
        raise Interrupted("CancelledError, and nobody had cancelled it") from error
    except BaseException as error:  # such as SystemExit, or the panic of a library that is written in Rust
        if steps.closed:
            raise
        raise Interrupted(f"{type(error).__name__}: {error}") from error


def _close(steps: Coroutine[Any, Any, Any]) -> None:
    """Close code of the user, which may ignore it, or raise anything."""
    with suppress(BaseException):
        steps.close()


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def _read_error(task: asyncio.Task[Any]) -> None:
    """Read the error of a task that nobody may wait for, so that asyncio does not log it as unread."""
    if not task.cancelled():
        task.exception()


def described(error: BaseException) -> str:
    """Return the type and the message of an error of the user's code as a text that UTF-8 can encode."""
    try:
        message = str(error)
    except Exception as raised:  # the method of the user's error
        message = f"(its message cannot be read: {type(raised).__name__})"
    name = "" if isinstance(error, Interrupted) else f"{type(error).__name__}: "
    return without_surrogates(f"{name}{message}")


def located(error: BaseException) -> str:
    """Return one line: the type and the message of an error, and where it was raised.

    Of a group of errors it is the first.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    raised = error.__cause__ if isinstance(error, Interrupted) and error.__cause__ else error
    frames = extract_tb(raised.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"raised {' '.join(described(error).split())}{where}"
