"""Awaits code of the user, which may raise anything, and may ignore its cancellation.

uninterrupted(work) ── a task of the work ── tasks that the work starts, by asyncio.create_task or gather
                           │                    │ SystemExit and KeyboardInterrupt become Interrupted
                           └──── cancelled ─────┴ after `end_seconds` dropped at their next await
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from pathlib import Path
from traceback import extract_tb
from typing import Any, Generic, TypeVar
from weakref import WeakSet

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

    def drop(self, task: asyncio.Task[Any]) -> None:
        """End the work, which the task awaits."""
        self.dropped = True
        task.cancel()

    def close(self) -> None:
        """Close the work of a task that has ended, which may have begun none of it."""
        if asyncio.iscoroutine(self._work):
            _close(self._work)

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


class _Started:
    """The running tasks that code of the user has started."""

    def __init__(self) -> None:
        self.tasks: dict[asyncio.Task[Any], _Droppable[Any]] = {}

    def add(self, task: asyncio.Task[Any], steps: _Droppable[Any]) -> None:
        """Keep a task until it ends."""
        self.tasks[task] = steps
        task.add_done_callback(self._ended)

    def drop(self) -> None:
        """End all tasks at the await at which they are."""
        for task, steps in list(self.tasks.items()):
            steps.drop(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task).close()


_STARTED: ContextVar[_Started | None] = ContextVar("tasks that code of the user has started", default=None)
"""Set in code of the user, and in the tasks that it starts."""
_ALL_STARTED: WeakSet[_Started] = WeakSet()


@contextmanager
def not_of_the_user() -> Iterator[None]:
    """Return a context for work of Slipstream that code of the user awaits: its tasks are not the user's."""
    token = _STARTED.set(None)
    try:
        yield
    finally:
        _STARTED.reset(token)


async def uninterrupted(
    work: Awaitable[T], *, end_seconds: float | None = None, on_dropped: Callable[[], None] = lambda: None
) -> T:
    """Return the result of the work, which runs in a task of its own.

    A cancellation of the caller cancels the work, once. `end_seconds`: how long it may go on then, before it
    and the tasks that it has started are dropped at their next await, and `on_dropped` is called; None: until
    it ends, for work that is not the user's. Errors: those of the work; Interrupted for an error that would
    otherwise end the task, or the event loop, of the caller; CancelledError if the caller was cancelled.
    """
    steps, started = _Droppable(work), None if end_seconds is None else _Started()
    if started is not None:
        _ALL_STARTED.add(started)
        _guard_tasks()
    context = copy_context()
    context.run(_STARTED.set, started)
    task = asyncio.Task(_converted(steps), context=context)
    task.add_done_callback(_read_error)
    task.add_done_callback(lambda _: steps.close())
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await _end_of(task, end_seconds)
        if not task.done():
            steps.drop(task)
            if started is not None:
                started.drop()
            on_dropped()
        raise
    return task.result()


async def end_left_tasks(seconds: float) -> int:
    """Cancel the tasks that code of the user has left, and drop after some seconds those that go on.

    Return how many were dropped. asyncio.run would wait for them for ever.
    """
    left = [task for started in list(_ALL_STARTED) for task in started.tasks]
    for task in left:
        task.cancel()
    going_on = (await asyncio.wait(left, timeout=seconds))[1] if left else set()
    for started in list(_ALL_STARTED):
        started.drop()
    await asyncio.sleep(0)
    return len(going_on)


class _TaskFactory:
    """Makes the tasks of an event loop; those that code of the user starts are droppable, and end no loop.

    asyncio raises SystemExit and KeyboardInterrupt of a task in the event loop, whoever awaits the task.
    """

    def __init__(self, before: Callable[..., Any] | None) -> None:
        """`before`: the task factory of the event loop so far."""
        self._before = before

    def __call__(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> Any:
        """See asyncio.loop.set_task_factory."""
        context = options.get("context")
        started = _STARTED.get() if context is None else context.get(_STARTED)
        if started is None:
            return self._made(loop, work, options)
        steps = _Droppable(work)
        task = self._made(loop, _without_exit(steps), options)
        started.add(task, steps)
        return task

    def _made(self, loop: asyncio.AbstractEventLoop, work: Any, options: dict[str, Any]) -> Any:
        if self._before is None:
            return asyncio.Task(work, loop=loop, **options)
        return self._before(loop, work, **options)


def _guard_tasks() -> None:
    """Let this event loop make its tasks by a _TaskFactory."""
    loop = asyncio.get_running_loop()
    before: Any = loop.get_task_factory()
    if not isinstance(before, _TaskFactory):
        loop.set_task_factory(_TaskFactory(before))


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


async def _without_exit(steps: _Droppable[T]) -> T:
    """Return the result of a task that code of the user has started.

    Errors: Interrupted for SystemExit and KeyboardInterrupt; those of the task.
    """
    try:
        return await steps
    except (SystemExit, KeyboardInterrupt) as error:
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
