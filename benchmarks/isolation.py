"""What isolation costs: trivial programs a second, and a child with walls against one without.

    python benchmarks/isolation.py [--programs N]

Programs a second, the start of a server, and one run at a time as its caller sees it are had without
bubblewrap around the servers and, where it works, with it. A child without walls is forked by the same warm
server, in the same way, with the same pipes and scratch folder, and only resource limits; both are had one
after the other, in turns, and the median is taken.
"""

import argparse
import asyncio
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace

from slipstream.config import VerifierConfig
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.verifier.sandbox import trial, warden
from slipstream.verifier.sandbox.job import Bounds, Run
from slipstream.verifier.sandbox.outer import Use, find
from slipstream.verifier.sandbox.sandbox import Sandbox
from slipstream.verifier.sandbox.server_process import ServerProcess

PROGRAM = "print(sum(map(int, input().split())))"
MILLISECONDS = 1000
STARTS = 10


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--programs", type=int, default=600)
    programs = parser.parse_args().programs
    for use in asyncio.run(uses()):
        name = "with isolation" if use == "off" else "within bubblewrap, too"
        print(f"{asyncio.run(programs_per_second(programs, use)):.0f} programs/s {name}")
        start, run = asyncio.run(server_milliseconds(programs // 4, use))
        print(f"  {start:.0f} ms to start a server, {run:.2f} ms a run")
    plain, isolated = child_milliseconds(programs // 4)
    print(f"{plain:.2f} ms a plain child, {isolated:.2f} ms an isolated one: {isolated - plain:+.2f} ms")


async def uses() -> list[Use]:
    """Without bubblewrap, and with it where it works."""
    missing = (await find("auto")).missing
    if "bubblewrap" in missing:
        print(f"no bubblewrap: {missing['bubblewrap']}")
    return ["off"] if "bubblewrap" in missing else ["off", "auto"]


async def programs_per_second(programs: int, use: Use) -> float:
    """Trivial programs a second, with a fork server for each core."""
    require = VerifierConfig().isolation.require
    log = Log(pod="benchmark", stream=io.StringIO())
    sandbox = Sandbox(number=None, require=require, bubblewrap=use, metrics=Metrics(), log=log)
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


async def server_milliseconds(times: int, use: Use) -> tuple[float, float]:
    """Median milliseconds of the start of a server, and of a run by one."""
    outer = await find(use)
    bounds = Bounds(output_bytes=65_536, scratch_mib=1)
    starts, runs = [], []
    for _ in range(STARTS):
        started = time.perf_counter()
        server = await ServerProcess.start(bounds, outer)
        starts.append(time.perf_counter() - started)
        for _ in range(times // STARTS):
            started = time.perf_counter()
            await server.have(_run())
            runs.append(time.perf_counter() - started)
        await server.kill()
    return statistics.median(starts) * MILLISECONDS, statistics.median(runs) * MILLISECONDS


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
