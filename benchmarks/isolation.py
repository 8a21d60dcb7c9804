"""The cost of isolation: trivial programs a second, and a child process with and without isolation.

    python -m benchmarks.isolation [--programs N]

Programs a second, the start of a server, and the latency of a single run are measured without bubblewrap
around the servers and, if it works, with it. A child without isolation is forked by the same warm server, in
the same way, with the same pipes and scratch folder, and with resource limits only. The two alternate, and
the benchmark reports the medians.
"""

import argparse
import asyncio
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from slipstream.config import VerifierConfig
from slipstream.sandbox import namespaces, supervisor, trial
from slipstream.sandbox.job import Bounds, Run
from slipstream.sandbox.outer import Outer, Use, find
from slipstream.sandbox.sandbox import Sandbox
from slipstream.sandbox.server_process import ServerProcess
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics

from benchmarks.ratio import print_ratio

PROGRAM = "print(sum(map(int, input().split())))"
MILLISECONDS = 1000
STARTS = 10
NAMES: dict[Use, str] = {"off": "with isolation", "auto": "within bubblewrap, too"}


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--programs", type=int, default=600)
    programs = parser.parse_args().programs
    rates: dict[Use, float] = {}
    for use, (start, run) in asyncio.run(servers_milliseconds(programs // 4)).items():
        print(NAMES[use])
        rates[use] = asyncio.run(programs_per_second(programs, use))
        print(f"{rates[use]:7.0f} programs/s")
        print(f"{start:7.0f} ms to start a server")
        print(f"{run:7.2f} ms a run, one at a time")
    plain, isolated = child_milliseconds(programs // 4)
    print(f"{plain:.2f} ms a plain child, {isolated:.2f} ms an isolated one\n")
    print_ratio("time of a child, isolated / plain", isolated / plain)
    if "auto" in rates:
        print_ratio("programs/s, within bubblewrap / without", rates["auto"] / rates["off"])


async def programs_per_second(programs: int, use: Use) -> float:
    """Return trivial programs a second, with a fork server for each core."""
    require = VerifierConfig().isolation.require
    log = Log(pod="benchmark", stream=io.StringIO())
    sandbox = Sandbox(number=None, require=require, bubblewrap=use, metrics=Metrics(), log=log)
    sandbox.prepare(memory_mib=512)
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


async def servers_milliseconds(times: int) -> dict[Use, tuple[float, float]]:
    """Return median milliseconds of the start of a server and of a run, without bubblewrap and with it."""
    outer: dict[Use, Outer] = {"off": await find("off"), "auto": await find("auto")}
    if outer["auto"].bubblewrap is None:
        print(f"no bubblewrap: {outer.pop('auto').missing['bubblewrap']}")
    starts: dict[Use, list[float]] = {use: [] for use in outer}
    runs: dict[Use, list[float]] = {use: [] for use in outer}
    for _ in range(STARTS):
        for use in outer:
            await _one_server(outer[use], times // STARTS, starts[use], runs[use])
    return {use: (_milliseconds(starts[use]), _milliseconds(runs[use])) for use in outer}


async def _one_server(outer: Outer, times: int, starts: list[float], runs: list[float]) -> None:
    started = time.perf_counter()
    server = await ServerProcess.start(Bounds(output_bytes=65_536, scratch_mib=1), outer)
    starts.append(time.perf_counter() - started)
    for _ in range(times):
        started = time.perf_counter()
        await server.run(_run())
        runs.append(time.perf_counter() - started)
    await server.kill()


def child_milliseconds(times: int) -> tuple[float, float]:
    """Return median milliseconds of a child without isolation, and of one with it."""
    missing = dict.fromkeys((namespaces.PROCESSES, namespaces.SCRATCH), "not here")
    with tempfile.TemporaryDirectory() as home:
        isolation, _ = trial.find_confinement(home, missing, Bounds(output_bytes=65_536, scratch_mib=1))
        no_isolation = replace(isolation, landlock_version=None, filter=None, switch_user=False)
        pairs = [
            (
                _seconds(lambda: supervisor.run_program(_run(), no_isolation, home)),
                _seconds(lambda: supervisor.run_program(_run(), isolation, home)),
            )
            for _ in range(times)
        ]
    plain, isolated = zip(*pairs, strict=True)
    return _milliseconds(plain), _milliseconds(isolated)


def _run() -> Run:
    return Run(code=PROGRAM, stdin="3 4\n", seconds=10.0, memory_mib=512)


def _milliseconds(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * MILLISECONDS


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
