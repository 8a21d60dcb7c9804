"""The life of a pod: initial containers, containers, probes, restarts, and the end with its grace period.

    created -> initial containers, in sequence -> containers -> probes every half second -> stop
A failed startup or liveness probe ends a container. A container that ends is restarted, except in a job.
"""

import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chart.kubelet.asking import answer
from chart.kubelet.container import Container
from chart.kubelet.environment import Facts, Store
from chart.kubelet.probes import Verdict, fresh
from chart.kubelet.processes import process_of
from chart.kubelet.volumes import READ_ONLY_KINDS, Mount, Volumes, container_mounts

TICK_SECONDS = 0.5
RESTART_SECONDS = 1.0
MESSAGE_CHARACTERS, MESSAGE_LINES = 2048, 80
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


@dataclass(kw_only=True)
class Running:
    """A container of the pod, and the verdicts of its probes."""

    spec: Mapping[str, Any]
    container: Container
    verdicts: dict[str, Verdict]
    started_at: float

    @property
    def up(self) -> bool:
        """Return whether the startup probe has succeeded, or there is none."""
        return "startupProbe" not in self.verdicts or self.verdicts["startupProbe"].good

    @property
    def ready(self) -> bool:
        """Return whether the container may receive requests."""
        readiness = self.verdicts.get("readinessProbe")
        return self.container.exit_status is None and self.up and (readiness is None or readiness.good)


@dataclass(kw_only=True)
class Pod:
    """A pod on the machine of a test; a thread controls it, as a worker of the kubelet does."""

    facts: Facts
    spec: Mapping[str, Any]
    labels: Mapping[str, str]
    store: Store
    volumes: Volumes
    claim_templates: list[Mapping[str, Any]]
    holder: int
    """The process that holds the network namespace of the pod."""
    node: int
    """The process that holds the network namespace of the machine, which sends the probes."""
    log_directory: Path
    job: bool = False
    restarts: int = 0
    exits: list[int] = field(default_factory=list)
    """Exit statuses of the containers in order of their ends, without initial containers."""
    problem: str = ""
    """Why the pod cannot run, or why its last container was ended."""
    running: list[Running] = field(default_factory=list)
    _starts: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        """Return the name of the pod in its namespace."""
        return self.facts.pod_name

    @property
    def ready(self) -> bool:
        """Return whether all containers are ready and none is being stopped."""
        return bool(self.running) and not self._stop.is_set() and all(c.ready for c in self.running)

    @property
    def ended(self) -> bool:
        """Return whether the pod has ended for good."""
        return self._thread is not None and not self._thread.is_alive()

    @property
    def log(self) -> str:
        """Return the logs of its containers in one text."""
        return "\n".join(
            path.read_text(errors="replace") for path in sorted(self.log_directory.glob("*.log"))
        )

    def start(self) -> None:
        """Start the pod."""
        self._thread = threading.Thread(target=self._live, name=self.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Begin to stop the pod within its grace period; `wait` waits for the end."""
        self._stop.set()

    def wait(self, seconds: float) -> bool:
        """Return whether the pod ended within `seconds`."""
        assert self._thread is not None
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def kill(self) -> None:
        """Kill its containers with SIGKILL, as when memory runs out; they are restarted."""
        for container in self.running:
            container.container.kill()

    def _live(self) -> None:
        try:
            self._laid_out = self.volumes.lay_out(self.spec, self.claim_templates)
            if not self._initialise():
                return
            self.running = [self._begin(spec) for spec in self.spec["containers"]]
            while not self._stop.wait(TICK_SECONDS):
                self._tick()
                if self.job and all(c.container.exit_status is not None for c in self.running):
                    self.exits += [int(c.container.exit_status or 0) for c in self.running]
                    return
        except (OSError, KeyError, ValueError) as error:
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            self._end()

    def _initialise(self) -> bool:
        """Run the initial containers; return whether all ended with status 0."""
        for spec in self.spec.get("initContainers") or []:
            before = 0
            while (status := self._run_to_end(spec)) not in (0, None):
                message = self._termination_message(spec, before)
                self.problem = f"initial container {spec['name']}: exit {status}{message}"
                before = self._log_of(spec).stat().st_size
                if self.job:
                    self.exits.append(int(status or 0))
                    return False
                self.restarts += 1
                self._stop.wait(RESTART_SECONDS)
        return not self._stop.is_set()

    def _run_to_end(self, spec: Mapping[str, Any]) -> int | None:
        """Run an initial container; return its exit status, or None if the pod was stopped first."""
        container = self._make(spec)
        while (status := container.wait(TICK_SECONDS)) is None:
            if self._stop.is_set():
                self._end_container(spec, container)
                return None
        return status

    def _termination_message(self, spec: Mapping[str, Any], before: int) -> str:
        """Return the termination message that `kubectl describe pod` shows, if it is the end of the log.

        `before`: the size of the log from earlier starts.
        """
        if spec.get("terminationMessagePolicy") != "FallbackToLogsOnError":
            return ""
        text = self._log_of(spec).read_bytes()[before:].decode(errors="replace")
        return ": " + "\n".join(text[-MESSAGE_CHARACTERS:].splitlines()[-MESSAGE_LINES:])

    def _log_of(self, spec: Mapping[str, Any]) -> Path:
        return self.log_directory / f"{self.name}.{spec['name']}.log"

    def _tick(self) -> None:
        for index, current in enumerate(self.running):
            status = current.container.exit_status
            if status is None:
                self._ask(current)
            elif not self.job and time.monotonic() - current.started_at > RESTART_SECONDS:
                self.exits.append(status)
                self.restarts += 1
                self.running[index] = self._begin(current.spec)

    def _ask(self, current: Running) -> None:
        """Run the startup probe until it succeeds, then the others; a failed liveness ends the container."""
        kinds = ("livenessProbe", "readinessProbe") if current.up else ("startupProbe",)
        for kind in kinds:
            probe = current.spec.get(kind)
            if probe is None or time.monotonic() - current.started_at < probe.get("initialDelaySeconds", 0):
                continue
            verdict = current.verdicts[kind].after(self._answer(probe, current), time.monotonic())
            current.verdicts[kind] = verdict
            if verdict.bad and kind != "readinessProbe":
                self.problem = f"{kind}: {verdict.detail}"
                self._end_container(current.spec, current.container)
                return

    def _end_container(self, spec: Mapping[str, Any], container: Container) -> None:
        container.signal(signal.SIGTERM)
        if container.wait(self._grace_seconds()) is None:
            self.problem = f"{spec['name']} did not end within its grace"
        container.kill()

    def _answer(self, probe: Mapping[str, Any], current: Running) -> str | None:
        return answer(probe, current.spec, current.container, node=self.node, address=self.facts.pod_ip)

    def _begin(self, spec: Mapping[str, Any]) -> Running:
        verdicts = {kind: fresh(spec[kind]) for kind in PROBES if kind in spec}
        return Running(spec=spec, container=self._make(spec), verdicts=verdicts, started_at=time.monotonic())

    def _make(self, spec: Mapping[str, Any]) -> Container:
        self._starts += 1
        mounts = [self._hosts(), *self._mounts(spec)]
        process = process_of(spec, self.spec, facts=self.facts, store=self.store, mounts=mounts)
        directory = self.volumes.pod_directory / f"start-{self._starts}"
        return Container(process, pod=self.holder, directory=directory, log=self._log_of(spec))

    def _mounts(self, spec: Mapping[str, Any]) -> list[Mount]:
        kinds = {volume["name"]: volume for volume in self.spec.get("volumes") or []}
        fixed = {name for name, v in kinds.items() if any(kind in v for kind in READ_ONLY_KINDS)}
        return container_mounts(spec, self._laid_out, always_read_only=fixed)

    def _hosts(self) -> Mount:
        return Mount(source=self.volumes.pod_directory / "hosts", target="/etc/hosts", read_only=False)

    def _grace_seconds(self) -> float:
        return float(self.spec.get("terminationGracePeriodSeconds", 30))

    def _end(self) -> None:
        """Run preStop, then send SIGTERM, and SIGKILL at the end of the grace period."""
        over = time.monotonic() + self._grace_seconds()
        living = [c for c in self.running if c.container.exit_status is None]
        for current in living:
            self._pre_stop(current, over)
            current.container.signal(signal.SIGTERM)
        for current in living:
            if current.container.wait(over - time.monotonic()) is None:
                self.problem = f"{current.spec['name']} did not end within its grace"
            current.container.kill()
            self.exits.append(int(current.container.exit_status or 0))

    def _pre_stop(self, current: Running, over: float) -> None:
        hook = (current.spec.get("lifecycle") or {}).get("preStop") or {}
        if "sleep" in hook:
            current.container.wait(float(hook["sleep"]["seconds"]))
        elif "exec" in hook:
            current.container.run(hook["exec"]["command"], seconds=over - time.monotonic())
