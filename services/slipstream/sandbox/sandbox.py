"""Run untrusted programs: a pool of fork servers, each replaced when it is lost.

`run` waits for a free server, at most WAIT_SECONDS. Invariant: a program runs only behind the layers that the
caller requires. A failed program costs only its own run, and a lost server costs one run.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from slipstream.processes import cores, fair_pool
from slipstream.sandbox import (
    capacity,
    cgroup,
    homes,
    job,
    layers,
    outer,
    packages,
    server_process,
    setting_names,
)
from slipstream.sandbox.cgroup import Cgroups
from slipstream.sandbox.homes import Home
from slipstream.sandbox.packages import PackageMissing
from slipstream.telemetry.background import BackgroundTask
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics

WAIT_SECONDS = 300.0


class Sandbox:
    """A pool of fork servers.

    The constructor starts nothing; `start` starts servers if `prepare` was called.
    """

    def __init__(
        self,
        *,
        number: int | None,
        require: Sequence[str],
        bubblewrap: outer.Use,
        metrics: Metrics,
        log: Log,
        allowed_packages: Sequence[str] = (),
        cgroups: Cgroups | None = None,
        settings: setting_names.SettingNames = setting_names.DEFAULT_NAMES,
    ) -> None:
        """`number`: servers to start; None for one per core, as far as they fit. `require`: layers of
        isolation.

        `cgroups`: None for those of this process. `settings`: names of the settings for error messages.
        """
        self._number = number
        self._bounds = job.Bounds()
        self._cgroups = cgroups or cgroup.own()
        self._require = require
        self._bubblewrap = bubblewrap
        self._outer = outer.Outer(bubblewrap=None, missing={})
        self._metrics = metrics
        self._log = log
        self._memory_mib = 0
        self._packages = allowed_packages
        self._settings = settings
        self._package_folder: Home | None = None
        self._slots: fair_pool.FairPool[server_process.ServerProcess | None] = fair_pool.FairPool()
        self._runs: set[BackgroundTask[job.RunResult]] = set()

    def prepare(self, *, memory_mib: int) -> None:
        """Tell the sandbox that programs with this memory limit will run. Call it before `start`.

        Without this call, `start` starts no servers.
        """
        self._memory_mib = max(self._memory_mib, memory_mib)

    async def start(self) -> None:
        """Start the servers.

        Errors: SandboxLost when a server cannot start, TooFewLayers, TooLittleCapacity, PackageMissing.
        """
        if not self._memory_mib:
            return
        self._metrics.count("sandbox_servers_lost_total", 0)
        if removed := await asyncio.to_thread(homes.sweep):
            self._log.info("folders of ended sandboxes removed", folders=removed)
        room = capacity.Capacity.of_this_process(self._cgroups)
        most = self._number or cores.usable_cores()
        threads = max(capacity.LEAST_THREADS, capacity.threads_each(room, self._bounds, servers=most))
        self._bounds = replace(self._bounds, threads=threads)
        self._link_packages()
        self._outer = await outer.find(self._bubblewrap)
        first = await self._start_server()
        self._slots.put(first)
        self._publish(first.report)
        try:
            need = capacity.Need.of(self._memory_mib, self._bounds, first.report)
            number = capacity.servers_for(room, need, wanted=self._number, settings=self._settings)
        except capacity.TooLittleCapacity as error:
            await self.close()
            raise capacity.TooLittleCapacity(f"{self._settings.servers}: {error}") from error
        if number < most:
            self._log.warning("fewer programs than cores", servers=number, memory_mib=room.memory_mib)
        for server in await asyncio.gather(*(self._start_server() for _ in range(number - 1))):
            self._slots.put(server)

    async def run(self, run: job.Run, *, group: str = "") -> job.RunResult:
        """Run a program, and return its result. Free servers go to the groups in turn.

        The run goes on when the caller is cancelled, so that its server stays usable. Errors: SandboxLost.
        """
        running = BackgroundTask.begin_unlogged(self._run(run, group), "run of a program", self._log)
        running.keep_in(self._runs)
        return await running.settle_shielded()

    async def close(self) -> None:
        """Kill every server."""
        await asyncio.gather(*(running.end() for running in self._runs))
        for server in self._slots.take_free():
            if server is not None:
                await server.kill()
        if self._package_folder is not None:
            self._package_folder.remove()
            self._package_folder = None

    def _link_packages(self) -> None:
        """Fill the folder of packages that programs may import. Errors: PackageMissing."""
        if self._packages:
            try:
                allowed = packages.find(self._packages)
            except PackageMissing as error:
                raise PackageMissing(f"{self._settings.packages}: {error}") from error
            self._package_folder = Home.make()
            allowed.link_into(self._package_folder.path)
            self._bounds = replace(
                self._bounds, packages=self._package_folder.path, modules=tuple(allowed.modules)
            )

    async def _run(self, run: job.Run, group: str) -> job.RunResult:
        server = await self._free_slot(group)
        try:
            if server is None:  # the last server of this slot was lost
                server = await self._start_server()
            events = self._cgroups.events()
            result = await server.run(run)
            if self._cgroups.events() > events:
                result = replace(result, doubt=result.doubt or self._cgroup_doubt())
        except BaseException:
            self._slots.put(None)
            self._metrics.count("sandbox_servers_lost_total")
            if server is not None:
                await server.kill()
            raise
        self._slots.put(server)
        return result

    def _cgroup_doubt(self) -> str:
        return (
            "during the run the kernel refused a process or killed one, because of a limit of this cgroup; "
            f"raise the limits on memory and processes, or lower {self._settings.servers}"
        )

    async def _free_slot(self, group: str) -> server_process.ServerProcess | None:
        try:
            with self._metrics.waiting("sandbox"):
                async with asyncio.timeout(WAIT_SECONDS):
                    return await self._slots.take(group)
        except TimeoutError as error:
            raise server_process.SandboxLost(f"no server was free within {WAIT_SECONDS:g} s") from error

    async def _start_server(self) -> server_process.ServerProcess:
        try:
            server = await server_process.ServerProcess.start(self._bounds, self._outer)
        except PackageMissing as error:
            raise PackageMissing(f"{self._settings.packages}: {error}") from error
        try:
            server.report.demand(self._require)
        except layers.TooFewLayers as error:
            await server.kill()
            raise layers.TooFewLayers(f"{self._settings.require}: {error}") from error
        return server

    def _publish(self, report: layers.Report) -> None:
        """Log the layers, and set their metrics."""
        for name in layers.LAYERS:
            self._metrics.set("isolation_layer", float(name in report.active), layer=name)
        self._log.info("sandbox", active=list(report.active), missing=dict(report.missing))
