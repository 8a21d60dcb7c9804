"""Coroutines that run in parallel: when one fails, the others are cancelled, and the failure is raised."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")


async def both(one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, U]) -> tuple[T, U]:
    """Run two coroutines to their end. Errors: the first failure of either."""
    with _first_failure():
        async with asyncio.TaskGroup() as tasks:
            first, second = tasks.create_task(one), tasks.create_task(other)
    return first.result(), second.result()


async def all_of(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines to their end; return their results in order. Errors: the first failure of any."""
    with _first_failure():
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(coroutine) for coroutine in coroutines]
    return [task.result() for task in running]


@asynccontextmanager
async def beside(coroutine: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine until the block ends. Errors: the first failure of the coroutine or the block."""
    with _first_failure():
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(coroutine)
            yield
            task.cancel()


@contextmanager
def _first_failure() -> Iterator[None]:
    """Raise the first error of a TaskGroup in place of the group, so that callers can catch it by its type.

    The group is its cause: a traceback shows the other errors.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group
