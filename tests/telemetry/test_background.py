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


def test_the_end_of_a_task_and_a_cancellation_are_not_logged_as_failures() -> None:
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


def unlogged(act: Callable[[BackgroundTask[None]], Coroutine[Any, Any, object]]) -> tuple[object, str]:
    """Return what an act on a failing, unlogged task returns, and the log."""
    log = Log(pod="p", stream=io.StringIO())

    async def run() -> object:
        task = BackgroundTask.begin_unlogged(_fails_soon(), "copying", log)
        await asyncio.sleep(0.005)
        result = await act(task)
        await asyncio.sleep(0.3)
        return result

    result = asyncio.run(run())
    assert isinstance(log.stream, io.StringIO)
    return result, log.stream.getvalue()


async def _fails_soon() -> None:
    await asyncio.sleep(0.15)
    raise ValueError("no good")


def test_the_failure_of_an_unlogged_task_is_raised_by_settle_and_not_logged() -> None:
    async def settle(task: BackgroundTask[None]) -> None:
        with pytest.raises(ValueError, match="no good"):
            await task.settle()
        await task.drop()

    assert unlogged(settle) == (None, "")


def test_the_failure_of_an_unlogged_task_is_returned_by_end() -> None:
    async def end(task: BackgroundTask[None]) -> BaseException | None:
        await asyncio.sleep(0.3)
        assert task.failed
        return await task.end()

    failure, log = unlogged(end)
    assert (repr(failure), log) == ("ValueError('no good')", "")


def test_an_unread_failure_is_logged_when_the_task_is_garbage_collected() -> None:
    async def drop(task: BackgroundTask[None]) -> None:
        await asyncio.sleep(0.3)
        await task.drop()

    assert 'warning p: copying failed error="ValueError: no good"' in unlogged(drop)[1]


def test_a_shielded_task_continues_when_its_caller_is_cancelled_and_its_failure_is_logged() -> None:
    async def cancelled(task: BackgroundTask[None]) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(task.settle_shielded(), 0.001)
        assert not task.done

    assert 'warning p: copying failed error="ValueError: no good"' in unlogged(cancelled)[1]


def test_the_wait_for_a_task_ends_with_an_event_or_after_the_timeout() -> None:
    async def wait(task: BackgroundTask[None]) -> tuple[bool, bool, bool]:
        stop = asyncio.Event()
        nothing = await task.wait(stop, seconds=0.001)
        stop.set()
        event = await task.wait(stop)
        ended = await task.wait(asyncio.Event())
        return nothing, event, ended

    assert unlogged(wait)[0] == (False, True, True)


def test_a_task_leaves_the_set_that_keeps_it_when_it_ends() -> None:
    async def keep(task: BackgroundTask[None]) -> tuple[int, int]:
        tasks = set[BackgroundTask[None]]()
        task.keep_in(tasks)
        kept = len(tasks)
        await task.wait()
        await asyncio.sleep(0)
        return kept, len(tasks)

    assert unlogged(keep)[0] == (1, 0)
