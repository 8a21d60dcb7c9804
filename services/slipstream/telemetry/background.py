"""Tasks that run beside the code that began them. A failure is logged as soon as the task ends."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from slipstream.telemetry.logs import Log

T = TypeVar("T")


class BackgroundTask(Generic[T]):
    """A running task. An exception that it raises is logged when it ends, and raised again by `settle`."""

    def __init__(self, task: asyncio.Task[T]) -> None:
        self._task = task

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
        """Start the work. A failure logs the error «`name` failed» with `values`, then calls `on_failure`.

        A cancelled task has not failed.
        """

        def ended(task: asyncio.Task[T]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is None:
                return
            log.error(f"{name} failed", **values, error=f"{type(error).__name__}: {error}")
            if on_failure is not None:
                on_failure(error)

        task = asyncio.create_task(work, name=name)
        task.add_done_callback(ended)
        return cls(task)

    @property
    def done(self) -> bool:
        """Whether the task has ended."""
        return self._task.done()

    async def settle(self) -> T:
        """Wait for the task, and return its result. Errors: the exception that it raised."""
        return await self._task

    async def settle_or_cancel(self, stop: asyncio.Event) -> None:
        """Wait for the task until `stop` is set, then cancel it. Raises nothing: a failure is in the log."""
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((self._task, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        await self.end()

    def cancel(self) -> None:
        """Request the cancellation of the task, and return at once."""
        self._task.cancel()

    async def end(self) -> None:
        """Cancel the task unless it has ended, and wait for its end. Raises nothing."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
