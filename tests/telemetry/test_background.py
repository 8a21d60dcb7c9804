"""What a background task raises is logged when it ends, whether or not somebody waits for it."""

import asyncio
import io
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from slipstream.telemetry.background import log_failure
from slipstream.telemetry.logs import Log


async def _fails() -> None:
    raise ValueError("no good")


async def _ends() -> None:
    return


def written(task_of: Callable[[], Coroutine[Any, Any, None]], *, cancel: bool = False) -> str:
    """What is in the log after a task has ended."""
    log = Log(pod="p", stream=io.StringIO())

    async def run() -> None:
        task = asyncio.create_task(task_of())
        log_failure(task, "copying", log, file="a")
        if cancel:
            task.cancel()
        await asyncio.sleep(0.01)

    asyncio.run(run())
    assert isinstance(log.stream, io.StringIO)
    return log.stream.getvalue()


def test_a_failure_that_nobody_waits_for_is_logged_with_its_reason() -> None:
    assert 'copying failed file=a error="ValueError: no good"' in written(_fails)


def test_the_end_of_a_task_and_a_cancellation_are_no_failures() -> None:
    assert written(_ends) == ""
    assert written(_fails, cancel=True) == ""


def test_who_waits_gets_the_exception_all_the_same() -> None:
    log = Log(pod="p", stream=io.StringIO())

    async def run() -> None:
        task = asyncio.create_task(_fails())
        log_failure(task, "copying", log)
        with pytest.raises(ValueError, match="no good"):
            await task

    asyncio.run(run())
