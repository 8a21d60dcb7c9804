"""The sandbox of a verifier: as many fork servers as cores or as fit, each replaced when it is lost.

`run` waits for a free server, at most WAIT_SECONDS. Invariant: code runs only behind the layers that the
configuration demands; a program costs its own run, never a server, and a lost server one run.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from slipstream.processes.cores import usable_cores
from slipstream.processes.fair_pool import FairPool
from slipstream.sandbox import cgroup, homes, packages
from slipstream.sandbox.capacity import (
    LEAST_THREADS,
    Capacity,
    Need,
    TooLittleCapacity,
    servers_for,
    threads_each,
)
from slipstream.sandbox.cgroup import Cgroups
from slipstream.sandbox.homes import Home
from slipstream.sandbox.job import Bounds, Run, RunResult
from slipstream.sandbox.layers import LAYERS, Report
from slipstream.sandbox.outer import Outer, Use, find
from slipstream.sandbox.server_process import SandboxLost, ServerProcess
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics

WAIT_SECONDS = 300.0
MACHINE_AT_FAULT = (
    "during the run the kernel refused a process or killed one for the limits of this cgroup; give the "
    "verifier more memory or processes, or lower verifier.workers"
)


class Sandbox:
    """Runs programs of a model. To make one starts nothing; `start` does, if `prepare` asked for it."""

    def __init__(
        self,
        *,
        number: int | None,
        require: Sequence[str],
        bubblewrap: Use,
        metrics: Metrics,
        log: Log,
        allowed_packages: Sequence[str] = (),
        cgroups: Cgroups | None = None,
    ) -> None:
        """`cgroups`: those of this process, unless they are given."""
        self._number = number
        self._bounds = Bounds()
        self._cgroups = cgroups or cgroup.own()
        self._require = require
        self._bubblewrap = bubblewrap
        self._outer = Outer(bubblewrap=None, missing={})
        self._metrics = metrics
        self._log = log
        self._memory_mib = 0
        self._packages = allowed_packages
        self._linked: Home | None = None
        self._places: FairPool[ServerProcess | None] = FairPool()
        self._runs: set[asyncio.Task[RunResult]] = set()

    def prepare(self, *, memory_mib: int) -> None:
        """Ask for servers of programs that may have so much memory; before `start`."""
        self._memory_mib = max(self._memory_mib, memory_mib)

    async def start(self) -> None:
        """Start the servers. Errors: SandboxLost when one cannot start, TooFewLayers, TooLittleCapacity."""
        if not self._memory_mib:
            return
        self._metrics.count("sandbox_servers_lost_total", 0)
        if swept := await asyncio.to_thread(homes.sweep):
            self._log.info("folders of ended verifiers removed", folders=swept)
        room = Capacity.of_this_process(self._cgroups)
        most = self._number or usable_cores()
        threads = max(LEAST_THREADS, threads_each(room, self._bounds, servers=most))
        self._bounds = replace(self._bounds, threads=threads)
        self._link_packages()
        self._outer = await find(self._bubblewrap)
        first = await self._begin()
        self._places.put(first)
        self._tell(first.report)
        try:
            need = Need.of(self._memory_mib, self._bounds, first.report)
            number = servers_for(room, need, wanted=self._number)
        except TooLittleCapacity:
            await self.close()
            raise
        if number < most:
            self._log.warning("fewer programs than cores", servers=number, memory_mib=room.memory_mib)
        for server in await asyncio.gather(*(self._begin() for _ in range(number - 1))):
            self._places.put(server)

    async def run(self, run: Run, *, group: str = "") -> RunResult:
        """What became of a run, which goes on when the caller is cancelled; groups take turns.

        Errors: SandboxLost.
        """
        task = asyncio.create_task(self._run(run, group))
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Kill every server."""
        for task in self._runs:
            task.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)
        for server in self._places.take_free():
            if server is not None:
                await server.kill()
        if self._linked is not None:
            self._linked.remove()
            self._linked = None

    def _link_packages(self) -> None:
        """Make the folder of packages that programs may import. Errors: PackageMissing."""
        if self._packages:
            found = packages.find(self._packages)
            self._linked = Home.make()
            found.link_into(self._linked.path)
            self._bounds = replace(self._bounds, packages=self._linked.path, modules=tuple(found.modules))

    async def _run(self, run: Run, group: str) -> RunResult:
        place = await self._free_place(group)
        server = place
        try:
            if server is None:
                server = await self._begin()
            events = self._cgroups.events()
            ran = await server.run(run)
            if self._cgroups.events() > events:
                ran = replace(ran, doubt=ran.doubt or MACHINE_AT_FAULT)
        except BaseException:
            self._places.put(None)
            self._metrics.count("sandbox_servers_lost_total")
            if server is not None:
                await server.kill()
            raise
        self._places.put(server)
        return ran

    async def _free_place(self, group: str) -> ServerProcess | None:
        try:
            with self._metrics.waiting("sandbox"):
                async with asyncio.timeout(WAIT_SECONDS):
                    return await self._places.take(group)
        except TimeoutError as error:
            raise SandboxLost(f"no server was free within {WAIT_SECONDS:g} s") from error

    async def _begin(self) -> ServerProcess:
        server = await ServerProcess.start(self._bounds, self._outer)
        try:
            server.report.demand(self._require)
        except ValueError:
            await server.kill()
            raise
        return server

    def _tell(self, report: Report) -> None:
        for name in LAYERS:
            self._metrics.set("isolation_layer", float(name in report.active), layer=name)
        self._log.info("sandbox", active=list(report.active), missing=dict(report.missing))
