"""Coroutines that run in parallel: when one fails, the others are cancelled, and the failure is raised."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Give a TaskGroup. Errors: its first failure in place of the group, so that callers can catch the type.

    The group is the cause of the failure: a traceback shows the other errors.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group


async def both(one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, U]) -> tuple[T, U]:
    """Run two coroutines to their end. Errors: the first failure of either."""
    async with task_group() as tasks:
        first, second = tasks.create_task(one), tasks.create_task(other)
    return first.result(), second.result()


async def all_of(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines to their end; return their results in order. Errors: the first failure of any."""
    async with task_group() as tasks:
        running = [tasks.create_task(coroutine) for coroutine in coroutines]
    return [task.result() for task in running]


@asynccontextmanager
async def beside(coroutine: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine until the block ends. Errors: the first failure of the coroutine or the block."""
    async with task_group() as tasks:
        task = tasks.create_task(coroutine)
        yield
        task.cancel()
