"""The load of the benchmark: a fixed number of concurrent answers."""

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The engine, the number and length of answers, and the time of a measurement."""

    engine: str
    streams: int
    tokens: int
    """Tokens of an answer."""
    seconds_per_answer: float = 1.0
    """Time of an answer of the emulated engine."""
    seconds: float = 10.0
    """Time of a measurement, after as many answers as there are streams."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a load from JSON."""
        return cls(**json.loads(text))

    def __str__(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The result of a measurement."""

    tokens_per_second: float
    cpu_seconds_per_thousand: float
    """CPU time of this process for 1,000 tokens."""


def prompt_of(number: int) -> tuple[int, ...]:
    """Return a prompt of 16 tokens that no other answer has."""
    return tuple(3 + (number // 9**place) % 9 for place in range(16))


async def measure(load: Load, sample: Callable[[int], Awaitable[int]]) -> Measured:
    """Keep `streams` concurrent answers; `sample` gets a number and returns the tokens of its answer."""
    numbers = itertools.count()
    sampled = answers = 0
    warm = asyncio.Event()

    async def stream(position: int) -> None:
        nonlocal sampled, answers
        await asyncio.sleep(
            load.seconds_per_answer * position / load.streams
        )  # so that streams end at different times
        while True:
            tokens = await sample(next(numbers))
            sampled += tokens  # not in the line of the await: other streams add meanwhile
            answers += 1
            if answers >= load.streams:
                warm.set()

    streams = [asyncio.create_task(stream(position)) for position in range(load.streams)]
    await warm.wait()
    before, began, cpu = sampled, time.monotonic(), time.process_time()
    await asyncio.sleep(load.seconds)
    count, seconds, cpu = sampled - before, time.monotonic() - began, time.process_time() - cpu
    for task in streams:
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    return Measured(tokens_per_second=count / seconds, cpu_seconds_per_thousand=1000 * cpu / max(count, 1))
