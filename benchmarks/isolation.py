"""What isolation costs: trivial programs a second, and a child with walls against one without.

    python benchmarks/isolation.py [--programs N]

A child without walls is forked by the same warm server, in the same way, with the same pipes and scratch
folder, and only resource limits; both are had one after the other, in turns, and the median is taken.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace

from slipstream.config import VerifierConfig
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.verifier.sandbox import trial, warden
from slipstream.verifier.sandbox.job import Run
from slipstream.verifier.sandbox.sandbox import Sandbox

PROGRAM = "print(sum(map(int, input().split())))"
MILLISECONDS = 1000


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--programs", type=int, default=600)
    programs = parser.parse_args().programs
    print(f"{asyncio.run(programs_per_second(programs)):.0f} programs/s with isolation")
    plain, isolated = child_milliseconds(programs // 4)
    print(f"{plain:.2f} ms a plain child, {isolated:.2f} ms an isolated one: {isolated - plain:+.2f} ms")


async def programs_per_second(programs: int) -> float:
    """Trivial programs a second, with a fork server for each core."""
    require = VerifierConfig().isolation.require
    sandbox = Sandbox(number=None, require=require, metrics=Metrics(), log=Log(pod="benchmark"))
    sandbox.prepare()
    await sandbox.start()
    try:
        await asyncio.gather(*(sandbox.run(_run()) for _ in range(16)))
        started = time.perf_counter()
        ran = await asyncio.gather(*(sandbox.run(_run()) for _ in range(programs)))
        seconds = time.perf_counter() - started
    finally:
        await sandbox.close()
    assert all(each.stdout == "7\n" for each in ran)
    return programs / seconds


def child_milliseconds(times: int) -> tuple[float, float]:
    """Median milliseconds of a child without walls, and of one behind them."""
    with tempfile.TemporaryDirectory() as home:
        walls, _ = trial.find_walls(home, {trial.PROCESSES: "not here"}, output_bytes=65_536, scratch_mib=1)
        open_walls = replace(walls, landlock_version=None, filter=None, switch_user=False)
        pairs = [
            (
                _seconds(lambda: warden.have(_run(), open_walls, home)),
                _seconds(lambda: warden.have(_run(), walls, home)),
            )
            for _ in range(times)
        ]
    plain, isolated = zip(*pairs, strict=True)
    return statistics.median(plain) * MILLISECONDS, statistics.median(isolated) * MILLISECONDS


def _run() -> Run:
    return Run(code=PROGRAM, stdin="3 4\n", seconds=10.0, memory_mib=512)


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
