"""Tasks that run beside the code that began them. Every failure is raised, returned, or logged.

begin ──────────▶ a failure is logged when the task ends, and raised by `settle`
begin_unlogged ─┬▶ settle, settle_shielded: raise the failure
                ├▶ end: returns the failure
                └▶ drop, or the caller of settle_shielded is cancelled: the failure is logged
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from slipstream.telemetry.logs import Log

T = TypeVar("T")


class BackgroundTask(Generic[T]):
    """A running task. An exception that it raises is never lost. A cancelled task has not failed."""

    def __init__(self, work: Coroutine[Any, Any, T], name: str, log: Log) -> None:
        self._task = asyncio.create_task(work, name=name)
        self._name = name
        self._log = log
        self._seen = False  # whether `settle` has raised the failure

    @classmethod
    def begin(
        cls,
        work: Coroutine[Any, Any, T],
        name: str,
        log: Log,
        *,
        on_failure: Callable[[BaseException], None] | None = None,
        **values: object,
    ) -> "BackgroundTask[T]":
        """Start the work. A failure logs the error «`name` failed» with `values`, then calls `on_failure`."""

        def ended(task: asyncio.Task[T]) -> None:
            error = _failure(task)
            if error is None:
                return
            log.error(f"{name} failed", **values, error=f"{type(error).__name__}: {error}")
            if on_failure is not None:
                on_failure(error)

        background = cls(work, name, log)
        background._task.add_done_callback(ended)
        return background

    @classmethod
    def begin_unlogged(cls, work: Coroutine[Any, Any, T], name: str, log: Log) -> "BackgroundTask[T]":
        """Start work whose failure its owner handles: by `settle`, `settle_shielded`, `end` or `drop`."""
        return cls(work, name, log)

    @property
    def done(self) -> bool:
        """Whether the task has ended."""
        return self._task.done()

    @property
    def failed(self) -> bool:
        """Whether the task has ended with an exception."""
        return self._task.done() and _failure(self._task) is not None

    async def wait(self, *events: asyncio.Event, seconds: float | None = None) -> bool:
        """Wait until the task ends or an event is set; return False after `seconds`. Raises no failure."""
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(event.wait()) for event in events]
            done, _ = await asyncio.wait(
                (self._task, *waiting), return_when=asyncio.FIRST_COMPLETED, timeout=seconds
            )
            for task in waiting:
                task.cancel()
        return bool(done)

    async def settle(self) -> T:
        """Wait for the task, and return its result. Errors: the exception that it raised."""
        try:
            return await self._task
        finally:
            self._seen = self._task.done()

    async def settle_shielded(self) -> T:
        """Wait for the task, which goes on when the caller is cancelled. Errors: as `settle`."""
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            self._task.add_done_callback(self._log_unseen)
            raise

    async def settle_or_cancel(self, stop: asyncio.Event) -> None:
        """Wait for the task until `stop` is set, then cancel it. Raises nothing: a failure is in the log."""
        await self.wait(stop)
        await self.end()

    def keep_in(self, tasks: "set[BackgroundTask[T]]") -> None:
        """Keep the task in a set until its end. The event loop itself holds only a weak reference."""
        tasks.add(self)
        self._task.add_done_callback(lambda _: tasks.discard(self))

    def cancel(self) -> None:
        """Request the cancellation of the task, and return at once."""
        self._task.cancel()

    async def end(self) -> BaseException | None:
        """Cancel the task unless it has ended, wait for its end, and return the exception that it raised."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return _failure(self._task)

    async def drop(self) -> None:
        """Cancel the task unless it has ended, and wait for its end. Log a failure that nobody has seen."""
        self._task.cancel()
        self._task.add_done_callback(self._log_unseen)
        await asyncio.wait((self._task,))

    def _log_unseen(self, task: asyncio.Task[T]) -> None:
        error = _failure(task)
        if error is not None and not self._seen:
            self._log.warning(f"{self._name} failed", error=f"{type(error).__name__}: {error}")


async def first_end(*tasks: BackgroundTask[Any]) -> None:
    """Wait until the first of the tasks ends. Raises no failure."""
    await asyncio.wait([task._task for task in tasks], return_when=asyncio.FIRST_COMPLETED)


def _failure(task: asyncio.Task[Any]) -> BaseException | None:
    """Return the exception of a task that has ended; None if it was cancelled or has a result."""
    return None if task.cancelled() else task.exception()
