"""Functions that the tests use as tools."""

import asyncio
import time
from typing import Annotated, Any, Literal

from pydantic import Field


def calculate(
    a: Annotated[int, Field(description="The first number.")], b: int, how: Literal["add", "times"] = "add"
) -> int:
    """Add or multiply two numbers."""
    return a + b if how == "add" else a * b


async def table(rows: list[int]) -> dict[str, int]:
    """Add up rows."""
    await asyncio.sleep(0)
    return {"sum": sum(rows)}


def broken(word: str) -> str:
    """Fail."""
    raise LookupError(f"no {word}")


def leaves() -> str:
    """Try to end the process."""
    raise SystemExit(3)


def hang() -> str:
    """Take too long."""
    time.sleep(30)
    return "never"


def stalls() -> str:
    """Raise the error of a socket that waited too long."""
    raise TimeoutError("socket")


def long() -> str:
    """Return a long text."""
    return "x" * 100


def half() -> str:
    """Return half of a surrogate pair."""
    return "a\ud800b"


def raises_half() -> str:
    """Raise an error with half of a surrogate pair."""
    raise ValueError("a\ud800b")


def silent() -> str:
    """Raise an error that cannot be printed."""

    class Silent(Exception):
        def __str__(self) -> str:
            raise LookupError("no message")

    raise Silent


def stops() -> str:
    """Raise the error of an iterator that has ended."""
    raise StopIteration(3)


async def cancels() -> str:
    """Raise the error of a task that was cancelled."""
    raise asyncio.CancelledError


async def waits() -> str:
    """Wait for a long time."""
    await asyncio.sleep(0.4)
    return "never"


async def exits() -> str:
    """Try to end the process from the event loop."""
    raise SystemExit(3)


def anything(value: Any) -> str:
    """Take any value."""
    return type(value).__name__


def untyped(a, b: int) -> int:  # type: ignore[no-untyped-def]
    """Have a parameter without a type."""
    return b


def undescribed(a: int) -> int:
    return a


def variadic(*a: int) -> int:
    """Take any number of numbers."""
    return sum(a)


def odd(a: asyncio.Event) -> int:
    """Take an argument of a type that JSON lacks."""
    return 0


VALUE = 3
