"""The life of one pod: initial containers, containers, probes, restarts, and the end with its grace.

    made -> initial containers, one after the other -> containers -> probes every half second -> stop
A failed startup or liveness probe ends a container; one that ends is started again unless the pod is a job.
"""

import http.client
import signal
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chart.kubelet.container import Container
from chart.kubelet.environment import Facts, Store, command_line, container_environment
from chart.kubelet.image import image_of
from chart.kubelet.network import inside_network
from chart.kubelet.probes import Verdict, fresh
from chart.kubelet.rootfs import SOURCES, Process
from chart.kubelet.volumes import READ_ONLY_KINDS, Mount, Volumes, container_mounts

TICK_SECONDS = 0.5
RESTART_SECONDS = 1.0
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


@dataclass(kw_only=True)
class Running:
    """A container of the pod and what its probes say."""

    spec: Mapping[str, Any]
    container: Container
    verdicts: dict[str, Verdict]
    started_at: float

    @property
    def up(self) -> bool:
        """The startup probe has said yes, or there is none."""
        return "startupProbe" not in self.verdicts or self.verdicts["startupProbe"].good

    @property
    def ready(self) -> bool:
        """It may get work."""
        said = self.verdicts.get("readinessProbe")
        return self.container.exit_status is None and self.up and (said is None or said.good)


@dataclass(kw_only=True)
class Pod:
    """One pod on the test's machine. Its thread is the kubelet's worker for it."""

    facts: Facts
    spec: Mapping[str, Any]
    labels: Mapping[str, str]
    store: Store
    volumes: Volumes
    claim_templates: list[Mapping[str, Any]]
    holder: int
    """Process whose network namespace is the pod's."""
    node: int
    """Process whose network namespace is the machine's: probes come from there."""
    log_directory: Path
    job: bool = False
    restarts: int = 0
    exits: list[int] = field(default_factory=list)
    """Exit statuses of its containers, in order of their ends, initial ones left out."""
    problem: str = ""
    """Why it cannot run, or why the last container was ended."""
    running: list[Running] = field(default_factory=list)
    _starts: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        """Its name in the namespace."""
        return self.facts.pod_name

    @property
    def ready(self) -> bool:
        """All containers are ready and none is being stopped."""
        return bool(self.running) and not self._stop.is_set() and all(c.ready for c in self.running)

    @property
    def ended(self) -> bool:
        """It will not run again."""
        return self._thread is not None and not self._thread.is_alive()

    @property
    def log(self) -> str:
        """What its containers wrote, in one text."""
        return "\n".join(
            path.read_text(errors="replace") for path in sorted(self.log_directory.glob("*.log"))
        )

    def start(self) -> None:
        """Let it live."""
        self._thread = threading.Thread(target=self._live, name=self.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end with its grace; `wait` for it."""
        self._stop.set()

    def wait(self, seconds: float) -> bool:
        """Whether it ended within that time."""
        assert self._thread is not None
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def kill(self) -> None:
        """SIGKILL to its containers, as when the machine runs out of memory; they are started again."""
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
        for spec in self.spec.get("initContainers") or []:
            status = None
            while status != 0 and not self._stop.is_set():
                container = self._make(spec)
                while (status := container.wait(TICK_SECONDS)) is None and not self._stop.is_set():
                    pass
                container.kill()
                if status not in (0, None):
                    self.problem = f"initial container {spec['name']}: exit {status}"
                    self.restarts += 1
                    if self.job:
                        self.exits.append(status)
                        return False
                    self._stop.wait(RESTART_SECONDS)
        return not self._stop.is_set()

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
        for kind in PROBES:
            if kind not in current.verdicts or (kind == "startupProbe" and current.up):
                continue
            if kind != "startupProbe" and not current.up:
                continue
            probe = current.spec[kind]
            if time.monotonic() - current.started_at < probe.get("initialDelaySeconds", 0):
                continue
            said = current.verdicts[kind].after(self._answer(probe, current), time.monotonic())
            current.verdicts[kind] = said
            if said.bad and kind != "readinessProbe":
                self.problem = f"{kind}: {said.detail}"
                current.container.signal(signal.SIGTERM)
                current.container.wait(self._grace_seconds())
                current.container.kill()
                return

    def _answer(self, probe: Mapping[str, Any], current: Running) -> str | None:
        seconds = float(probe.get("timeoutSeconds", 1))
        if "exec" in probe:
            return current.container.run(probe["exec"]["command"], seconds=seconds)
        with inside_network(self.node):
            if "httpGet" in probe:
                return self._http(probe["httpGet"], current.spec, seconds)
            return self._tcp(probe["tcpSocket"]["port"], current.spec, seconds)

    def _http(self, request: Mapping[str, Any], spec: Mapping[str, Any], seconds: float) -> str | None:
        try:
            status, body = get(self.facts.pod_ip, port_of(request["port"], spec), request["path"], seconds)
        except (OSError, http.client.HTTPException) as error:
            return f"{type(error).__name__}: {error}"
        return None if 200 <= status < 400 else f"{status}: {body}"

    def _tcp(self, port: int | str, spec: Mapping[str, Any], seconds: float) -> str | None:
        try:
            socket.create_connection((self.facts.pod_ip, port_of(port, spec)), seconds).close()
        except OSError as error:
            return f"{type(error).__name__}: {error}"
        return None

    def _begin(self, spec: Mapping[str, Any]) -> Running:
        verdicts = {kind: fresh(spec[kind]) for kind in PROBES if kind in spec}
        return Running(spec=spec, container=self._make(spec), verdicts=verdicts, started_at=time.monotonic())

    def _make(self, spec: Mapping[str, Any]) -> Container:
        self._starts += 1
        image, context = image_of(spec["image"]), self.spec.get("securityContext") or {}
        context = {**context, **(spec.get("securityContext") or {})}
        brought = {**image.environment, "HOSTNAME": self.name, "PYTHONPATH": SOURCES}
        environment = container_environment(spec, image=brought, facts=self.facts, store=self.store)
        group, more = context.get("runAsGroup", image.group), context.get("supplementalGroups") or []
        process = Process(
            words=command_line(spec, entrypoint=image.entrypoint, default=image.command, known=environment),
            environment=environment,
            directory=spec.get("workingDir", image.directory),
            user=context.get("runAsUser", image.user),
            group=group,
            groups=[*more, *([context["fsGroup"]] if "fsGroup" in context else [])],
            hostname=self.name,
            mounts=[self._hosts(), *self._mounts(spec)],
            read_only_root=bool(context.get("readOnlyRootFilesystem")),
            new_privileges=context.get("allowPrivilegeEscalation", True),
        )
        if context.get("runAsNonRoot") and process.user == 0:
            raise ValueError(f"container {spec['name']} must not run as root, and its image would")
        directory = self.volumes.pod_directory / f"start-{self._starts}"
        log = self.log_directory / f"{self.name}.{spec['name']}.log"
        return Container(process, pod=self.holder, directory=directory, log=log)

    def _mounts(self, spec: Mapping[str, Any]) -> list[Mount]:
        kinds = {volume["name"]: volume for volume in self.spec.get("volumes") or []}
        fixed = {name for name, v in kinds.items() if any(kind in v for kind in READ_ONLY_KINDS)}
        return container_mounts(spec, self._laid_out, always_read_only=fixed)

    def _hosts(self) -> Mount:
        return Mount(source=self.volumes.pod_directory / "hosts", target="/etc/hosts", read_only=False)

    def _grace_seconds(self) -> float:
        return float(self.spec.get("terminationGracePeriodSeconds", 30))

    def _end(self) -> None:
        """preStop, SIGTERM, and SIGKILL when the grace is over."""
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


def port_of(port: int | str, spec: Mapping[str, Any]) -> int:
    """A port's number, by the container's names. Errors: StopIteration for a name that it does not have."""
    if isinstance(port, int):
        return port
    return int(next(p["containerPort"] for p in spec["ports"] if p.get("name") == port))


def get(host: str, port: int, path: str, seconds: float) -> tuple[int, str]:
    """Status and body of an HTTP GET. Errors: OSError and HTTPException."""
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()
