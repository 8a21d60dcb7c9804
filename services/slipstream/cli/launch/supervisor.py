"""Starts the pods of a run, restarts them after failures, and stops them in an order that loses no data.

    teacher ─▶┐                               only where the run distills
    replay ──┬┴▶ learner ───▶ rollout-0 …     an arrow: its address is known
    verifier ┴──────────────▶ actor-0 …
    stop: learner, rollouts and actors together ─▶ (the ledger is read) ─▶ teacher, verifier and replay

Each pod has one task (`_keep`): it waits for the addresses that the pod needs, then for its ready file, then
for its end. A death before it was ever ready, and every death of the learner, ends the run; others come back,
up to `restarts` times one after the other. A pod that was ready for `healthy_seconds` has all of them again.
"""

import asyncio
import os
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from slipstream.cli.launch import pods, run_directory
from slipstream.cli.launch.process import (
    PodFailed,
    Process,
    ended_how,
    stop_processes,
    stop_while_it_progresses,
)

CHECK_SECONDS = 0.1


class Supervisor:
    """The pods of one run. Invariant: every running process of a pod is in `processes`."""

    def __init__(
        self,
        specs: Sequence[pods.PodSpec],
        run: run_directory.RunDirectory,
        *,
        environment: Mapping[str, str],
        say: Callable[[str], None],
        started: Callable[[int], None],
    ) -> None:
        self._specs = specs
        self._run = run
        self._environment = environment
        self._say = say
        self._started = started
        self._announced = {spec.name: asyncio.Event() for spec in specs}
        self._gone: set[str] = set()
        self.addresses: dict[str, str] = {}
        self.processes: dict[str, Process] = {}

    @property
    def waiting_for(self) -> list[str]:
        """Pods that are not ready yet."""
        return [name for name, event in self._announced.items() if not event.is_set()]

    async def run(self, interrupted: asyncio.Event) -> None:
        """Start all pods; return when the learner has ended or `interrupted` is set.

        Errors: PodFailed when a pod is not restarted and the run needs it.
        """
        keepers = {spec.name: asyncio.create_task(self._keep(spec)) for spec in self._specs}
        try:
            while not interrupted.is_set() and not keepers[pods.LEARNER].done():
                await asyncio.wait(
                    keepers.values(), timeout=CHECK_SECONDS, return_when=asyncio.FIRST_EXCEPTION
                )
                _raise_first(keepers.values())
            _raise_first(keepers.values())
        finally:
            for keeper in keepers.values():
                keeper.cancel()
            await asyncio.gather(*keepers.values(), return_exceptions=True)

    async def address_of(self, pod: str) -> str:
        """Wait until a pod was ready once, and return its address."""
        await self._announced[pod].wait()
        return self.addresses[pod]

    async def stop_work(self, progress: Callable[[], Hashable], *, step_seconds: float) -> None:
        """Learner, rollouts and actors finish or hand back, checkpoint, and end.

        The learner has as long as it needs while `progress` returns something new at least every
        `stop_seconds`, or twice the `step_seconds` that a step takes, because it may have to finish one.
        """
        (learner,) = (spec for spec in self._specs if spec.name == pods.LEARNER)
        others = [spec for spec in self._specs if spec.works and spec is not learner]
        patience = max(learner.stop_seconds, 2 * step_seconds)
        await asyncio.gather(self._stop(others), self._stop_learner(progress, patience_seconds=patience))

    async def stop_services(self) -> None:
        """Stop teacher, verifier and replay."""
        await self._stop([spec for spec in self._specs if not spec.works])

    async def _keep(self, spec: pods.PodSpec) -> None:
        """Start one pod, and restart it after failures; return after a normal end.

        Learner and rollouts end when the run is over. An actor ends only when it is asked to, and without
        actors the run would wait for ever.
        """
        for needed in spec.needs:
            await self._announced[needed].wait()
        restarts = 0
        while True:
            status, ready_seconds = await self._live(spec)
            if status == 0 and spec.works and not spec.name.startswith(pods.ACTOR):
                self._gone.add(spec.name)
                return
            process = self.processes[spec.name]
            if ready_seconds >= spec.healthy_seconds:
                restarts = 0
            if restarts == spec.restarts:
                self._give_up(spec, process, status)
                return
            pause = spec.pause_seconds * 2**restarts
            restarts += 1
            how = f"{spec.name} {ended_how(status)}"
            self._say(
                f"{how}; starting it again in {pause:g} s ({restarts} of {spec.restarts}), see {process.log}"
            )
            await asyncio.sleep(pause)

    async def _live(self, spec: pods.PodSpec) -> tuple[int, float]:
        """Start a pod, and wait for its end; return its status, and for how many seconds it was ready.

        Only the first start must become ready.
        """
        process = self._spawn(spec)
        try:
            address = await process.ready(self._run.ready_file(spec.name), seconds=spec.start_seconds)
        except PodFailed:
            if not self._announced[spec.name].is_set():
                raise
            process.kill()
            return await process.ended(), 0.0
        self.addresses[spec.name] = address
        self._announced[spec.name].set()
        self._say(f"{spec.name} is ready" + (f" at {address}" if address else ""))
        ready_at = time.monotonic()
        return await process.ended(), time.monotonic() - ready_at

    def _give_up(self, spec: pods.PodSpec, process: Process, status: int) -> None:
        """Do not restart a pod. Errors: PodFailed unless another pod does the same work."""
        self._gone.add(spec.name)
        kind = next((kind for kind in (pods.ROLLOUT, pods.ACTOR) if spec.name.startswith(kind)), spec.name)
        if {other.name for other in self._specs if other.name.startswith(kind)} <= self._gone:
            raise PodFailed(f"{spec.name} {ended_how(status)}", process)
        self._say(f"{spec.name} {ended_how(status)} and is not started again; the run goes on without it")

    def _spawn(self, spec: pods.PodSpec) -> Process:
        ready_file = self._run.ready_file(spec.name)
        ready_file.unlink(missing_ok=True)
        who = ("--config", str(self._run.config), "--name", spec.name)
        whose = ("--ready-file", str(ready_file), "--parent", str(os.getpid()))
        process = Process(
            spec.name,
            (*spec.command, *who, *whose),
            log=self._run.log(spec.name),
            environment=self._environment_of(spec),
        )
        self.processes[spec.name] = process
        self._started(process.pid)
        return process

    def _environment_of(self, spec: pods.PodSpec) -> dict[str, str]:
        """Return the environment of a pod: the addresses that it needs, and on a restart its previous
        address."""
        addresses = {
            name: self.addresses[name] for name in (*spec.needs, spec.name) if name in self.addresses
        }
        port = {pods.METRICS_PORT_VARIABLE: str(spec.metrics_port)} if spec.metrics_port else {}
        return {**self._environment, **pods.address_environment(addresses), **port}

    async def _stop(self, specs: Sequence[pods.PodSpec]) -> None:
        """Stop these pods together; the longest `stop_seconds` counts for all."""
        seconds = max((spec.stop_seconds for spec in specs), default=0.0)
        living = [self.processes[spec.name] for spec in specs if spec.name in self.processes]
        for name in await stop_processes(living, seconds=seconds):
            self._say(f"{name} did not stop within {seconds:g} s and was killed, see {self._run.log(name)}")

    async def _stop_learner(self, progress: Callable[[], Hashable], *, patience_seconds: float) -> None:
        process = self.processes.get(pods.LEARNER)
        if process is None or await stop_while_it_progresses(
            process, progress, patience_seconds=patience_seconds
        ):
            return
        self._say(
            f"{pods.LEARNER} made no progress for {patience_seconds:g} s and was killed, see {process.log}"
        )


def _raise_first(tasks: Iterable["asyncio.Task[None]"]) -> None:
    """Raise the error of the first failed task."""
    for task in tasks:
        if task.done() and (error := task.exception()) is not None:
            raise error
