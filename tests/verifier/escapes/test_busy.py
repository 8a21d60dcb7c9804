"""On a machine whose cores are taken, a program that takes more than its time is late, and not lost."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.config import VerifierConfig
from slipstream.config.rewards import CodeTestsConfig
from slipstream.verifier.sandbox.job import Run
from verifier.escapes import interpreter
from verifier.scoring import Bench

MANY_THREADS = interpreter.PRELUDE + interpreter.STAYING["computes many times its deadline in threads"]
SECONDS = 0.3


@contextmanager
def busy() -> Iterator[None]:
    """Every core has something to compute."""
    command = [sys.executable, "-c", "while True: pass"]
    spinners = [subprocess.Popen(command) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def test_a_program_of_many_threads_does_not_wait_for_itself() -> None:
    async def ends() -> list[tuple[str, bool]]:
        async with Bench([CodeTestsConfig(name="code_tests")], config=VerifierConfig(workers=1)) as bench:
            with busy():
                run = Run(code=MANY_THREADS, call="answer", arguments="[]", seconds=SECONDS, memory_mib=512)
                runs = [await bench.surroundings.sandbox.run(run) for _ in range(2)]
            return [(ran.end, ran.seconds < 4 * SECONDS) for ran in runs]

    assert asyncio.run(ends()) == [("late", True)] * 2
