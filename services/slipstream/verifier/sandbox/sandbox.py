"""The sandbox of a verifier: as many fork servers as cores, each replaced when it is lost.

`run` waits for a free server, at most WAIT_SECONDS. Invariant: code runs only behind the layers that the
configuration demands; a program costs its own run, never a server, and a lost server one run.
"""

import asyncio
from collections.abc import Sequence

from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.verifier.sandbox.job import Bounds, Ran, Run
from slipstream.verifier.sandbox.layers import LAYERS, Report
from slipstream.verifier.sandbox.outer import Outer, Use, find
from slipstream.verifier.sandbox.server_process import SandboxLost, ServerProcess
from slipstream.verifier.workers.cores import usable_cores
from slipstream.verifier.workers.turns import Turns

WAIT_SECONDS = 300.0
OUTPUT_BYTES = 256 * 1024
SCRATCH_MIB = 16


class Sandbox:
    """Runs programs of a model. To make one starts nothing; `start` does, if `prepare` asked for it."""

    def __init__(
        self, *, number: int | None, require: Sequence[str], bubblewrap: Use, metrics: Metrics, log: Log
    ) -> None:
        self._number = number or usable_cores()
        self._bounds = Bounds(output_bytes=OUTPUT_BYTES, scratch_mib=SCRATCH_MIB)
        self._require = require
        self._bubblewrap = bubblewrap
        self._outer = Outer(bubblewrap=None, missing={})
        self._metrics = metrics
        self._log = log
        self._wanted = False
        self._places: Turns[ServerProcess | None] = Turns()
        self._runs: set[asyncio.Task[Ran]] = set()

    def prepare(self) -> None:
        """Ask for servers; before `start`."""
        self._wanted = True

    async def start(self) -> None:
        """Start the servers. Errors: SandboxLost when one cannot start, TooFewLayers."""
        if not self._wanted:
            return
        self._metrics.count("sandbox_servers_lost_total", 0)
        self._outer = await find(self._bubblewrap)
        first = await self._begin()
        self._places.put(first)
        self._tell(first.report)
        for server in await asyncio.gather(*(self._begin() for _ in range(self._number - 1))):
            self._places.put(server)

    async def run(self, run: Run, *, group: str = "") -> Ran:
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

    async def _run(self, run: Run, group: str) -> Ran:
        place = await self._free_place(group)
        server = place
        try:
            if server is None:
                server = await self._begin()
            ran = await server.have(run)
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
