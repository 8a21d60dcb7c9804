"""The failure of a background task is logged when the task ends, whether or not `settle` is called."""

import asyncio
import io
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from slipstream.telemetry.background import BackgroundTask
from slipstream.telemetry.logs import Log


async def _fails() -> None:
    raise ValueError("no good")


async def _ends() -> None:
    return


def written(work: Callable[[], Coroutine[Any, Any, None]], *, cancel: bool = False) -> str:
    """Return the log after a task has ended."""
    log = Log(pod="p", stream=io.StringIO())

    async def run() -> None:
        task = BackgroundTask.begin(work(), "copying", log, file="a")
        if cancel:
            task.cancel()
        await asyncio.sleep(0.01)

    asyncio.run(run())
    assert isinstance(log.stream, io.StringIO)
    return log.stream.getvalue()


def test_a_failure_is_logged_with_its_reason_without_settle() -> None:
    assert 'copying failed file=a error="ValueError: no good"' in written(_fails)


def test_the_end_of_a_task_and_a_cancellation_are_no_failures() -> None:
    assert written(_ends) == ""
    assert written(_fails, cancel=True) == ""


def test_settle_raises_the_exception_that_was_logged() -> None:
    log = Log(pod="p", stream=io.StringIO())

    async def run() -> None:
        with pytest.raises(ValueError, match="no good"):
            await BackgroundTask.begin(_fails(), "copying", log).settle()

    asyncio.run(run())


def test_a_failure_is_given_to_on_failure_and_a_cancellation_is_not() -> None:
    log, failures = Log(pod="p", stream=io.StringIO()), list[BaseException]()

    async def run() -> None:
        failing = BackgroundTask.begin(_fails(), "copying", log, on_failure=failures.append)
        cancelled = BackgroundTask.begin(asyncio.sleep(60), "waiting", log, on_failure=failures.append)
        await cancelled.end()
        await failing.end()

    asyncio.run(run())
    assert [str(failure) for failure in failures] == ["no good"]


def test_a_task_is_cancelled_when_the_stop_comes_before_its_end() -> None:
    log = Log(pod="p", stream=io.StringIO())

    async def run() -> bool:
        stop = asyncio.Event()
        task = BackgroundTask.begin(asyncio.sleep(60), "waiting", log)
        asyncio.get_running_loop().call_later(0.01, stop.set)
        await task.settle_or_cancel(stop)
        return task.done

    assert asyncio.run(run())
