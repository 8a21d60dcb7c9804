"""Awaits code of the user, which may raise anything."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from traceback import extract_tb
from typing import TypeVar

from slipstream.records import without_surrogates

T = TypeVar("T")


class Interrupted(Exception):
    """Code of the user raised CancelledError without being cancelled, or an error outside of Exception."""


async def uninterrupted(work: Awaitable[T]) -> T:
    """Return the result of the work.

    Errors: those of the work; Interrupted for an error that would otherwise end the task, or the event loop,
    of the caller. CancelledError if the caller was cancelled.
    """
    task = asyncio.current_task()
    assert task is not None
    cancellations = task.cancelling()
    try:
        return await work
    except asyncio.CancelledError as error:
        if task.cancelling() > cancellations:
            raise
        raise Interrupted("CancelledError, and nobody had cancelled it") from error
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # SystemExit, or the panic of a library that is written in Rust
        raise Interrupted(f"{type(error).__name__}: {error}") from error


def described(error: BaseException) -> str:
    """Return the type and the message of an error of the user's code as a text that UTF-8 can encode."""
    try:
        message = str(error)
    except Exception as raised:  # the method of the user's error
        message = f"(its message cannot be read: {type(raised).__name__})"
    name = "" if isinstance(error, Interrupted) else f"{type(error).__name__}: "
    return without_surrogates(f"{name}{message}")


def located(error: BaseException) -> str:
    """Return one line: the type and the message of an error, and where it was raised."""
    raised = error.__cause__ if isinstance(error, Interrupted) and error.__cause__ else error
    frames = extract_tb(raised.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"raised {' '.join(described(error).split())}{where}"
