"""On a busy machine, a program that uses up its deadline is `late`, and its run is not lost."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sandbox.hostile_programs import interpreter
from sandbox.started import started
from slipstream.sandbox.job import Run, RunResult

MANY_THREADS = interpreter.PRELUDE + interpreter.STAYING["computes many times its deadline in threads"]
SECONDS = 0.3


@contextmanager
def busy(load: int) -> Iterator[None]:
    """Keep every core busy with `load` processes, in sessions of their own: the scheduler is fair per
    session."""
    command = [sys.executable, "-c", "while True: pass"]
    number = load * len(os.sched_getaffinity(0))
    spinners = [subprocess.Popen(command, start_new_session=True) for _ in range(number)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def ends(code: str, *, seconds: float, number: int) -> list[str]:
    """Return how runs of a program end on a busy machine."""
    return [result.end for result in runs(code, seconds=seconds, number=number)]


def runs(code: str, *, seconds: float, number: int, load: int = 1) -> list[RunResult]:
    """Return the results of runs of a program on a busy machine."""

    async def play() -> list[RunResult]:
        async with started() as sandbox:
            run = Run(code=code, call="answer", arguments="[]", seconds=seconds, memory_mib=512)
            with busy(load):
                return [await sandbox.run(run) for _ in range(number)]

    return asyncio.run(play())


def test_time_without_a_core_does_not_count_against_the_deadline() -> None:
    code = "import time\ndef answer():\n while time.process_time() < 0.5: pass"
    (ran,) = runs(code, seconds=4, number=1, load=3)
    assert ran.end == "exited"
    assert 0.4 < ran.seconds < 0.7


def test_waits_between_the_threads_of_a_program_count_against_its_deadline() -> None:
    assert ends(MANY_THREADS, seconds=SECONDS, number=1) == ["late"]


def test_a_short_deadline_starts_when_the_program_starts() -> None:
    assert ends("while True: pass", seconds=0.01, number=10) == ["late"] * 10
