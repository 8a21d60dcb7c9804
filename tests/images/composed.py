"""Run deploy/compose.yaml without Docker: one process tree per service, with its mounts, names and user.

    unshare --mount --net python -m images.composed < ORDER.json

All services share one network namespace. Every container has the same ports for metrics and rollouts, so each
service gets its own loopback address in place of 0.0.0.0. The programs are those of this machine, not of an
image. Everything else is as compose.yaml says.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from images.builder import PATH, devices, mount, overlay

PORT = 9464
SECONDS = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """One container of a service."""

    name: str
    root: Path
    process: subprocess.Popen[bytes]
    log: Path


class Machine:
    """Starts the services of a compose file in the order of their dependencies."""

    def __init__(self, order: dict[str, Any], folder: Path) -> None:
        self.deploy = Path(order["deploy"])
        self.repository = Path(order["repository"])
        text = (self.deploy / "compose.yaml").read_text(encoding="utf-8")
        self.services: dict[str, Any] = yaml.safe_load(interpolated(text, order["variables"]))["services"]
        self.addresses = {name: f"127.0.1.{place}" for place, name in enumerate(self.services, start=1)}
        self.running: list[Running] = []
        self._folder = folder

    def start(self, name: str, *, replica: int = 1) -> Running:
        service = self.services[name]
        root = self._folder / f"{name}-{replica}" / "root"
        self._make_root(root, service)
        log = root.parent / "log"
        inside = ["chroot", f"--userspec={service['user']}", "--groups=", str(root), *command(service)]
        named = ["unshare", "--uts", "sh", "-c", f'hostname {name}-{replica} && exec "$@"', "sh", *inside]
        process = subprocess.Popen(
            named,
            env=self._environment(name, service),
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.running.append(Running(name=name, root=root, process=process, log=log))
        return self.running[-1]

    def wait(self, container: Running, done: Callable[[], bool], what: str) -> None:
        """Wait until `done()`. Errors: SystemExit with the log, if the container ends first or time is up."""
        deadline = time.monotonic() + SECONDS
        while not done():
            ended = container.process.poll()
            if ended not in (None, 0) or time.monotonic() > deadline:
                logs = "\n".join(f"== {c.name}\n{c.log.read_text()[-3000:]}" for c in self.running)
                raise SystemExit(f"{container.name}: {what} did not happen (status {ended})\n{logs}")
            time.sleep(0.2)

    def is_ready(self, name: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.addresses[name]}:{PORT}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def is_healthy(self, container: Running) -> bool:
        """Return whether the health check of the service, a shell line, succeeds."""
        (line,) = self.services[container.name]["healthcheck"]["test"][1:]
        command = ["chroot", container.root, "sh", "-c", line]
        return subprocess.run(command, env={"PATH": PATH}, capture_output=True).returncode == 0

    def _environment(self, name: str, service: dict[str, Any]) -> dict[str, str]:
        environment = {
            "PATH": f"/opt/environment/bin:{PATH}",
            "HOME": "/tmp",
            "USER": "slipstream",
            "OMP_NUM_THREADS": "1",
        }
        if name == "redis":
            environment["PATH"] = PATH  # Debian's Redis was built with TLS
        environment |= {
            "PYTHONPATH": "/opt/services",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
        }
        environment["SLIPSTREAM_METRICS_HOST"] = self.addresses[name]
        if name == "rollout":
            environment["SLIPSTREAM_ROLLOUT_ADDRESS"] = f"{self.addresses[name]}:50054"
        return environment | service.get("environment", {})

    def _make_root(self, root: Path, service: dict[str, Any]) -> None:
        root.mkdir(parents=True)
        overlay(Path("/"), root, root.parent)
        devices(root / "dev")
        mount("-t", "proc", "-o", "ro", "proc", str(root / "proc"))
        (root / "root").chmod(0o755)  # this machine's Python may be in a folder below /root
        hosts = "".join(f"{address} {name}\n" for name, address in self.addresses.items())
        (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        self._bind(Path(sys.prefix), root / "opt/environment", "ro")
        self._bind(self.repository / "services", root / "opt/services", "ro")
        self._bind(
            self.repository / "charts", root / "opt/charts", "ro"
        )  # services/ has symbolic links into charts/
        for volume in service.get("volumes", []):
            source, target, *flags = volume.split(":")
            self._bind((self.deploy / source).resolve(), root / target.lstrip("/"), *flags)
        for volume in service["tmpfs"]:
            target = root / volume.partition(":")[0].lstrip("/")
            target.mkdir(parents=True, exist_ok=True)
            mount("-t", "tmpfs", "-o", "mode=1777", "volume", str(target))
        mount("-o", "remount,ro", str(root))

    def _bind(self, source: Path, target: Path, *flags: str) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.parent.chmod(0o755)  # this machine may have a folder there that others may not enter
        if source.is_dir():
            target.mkdir(exist_ok=True)
        else:
            target.touch()
        mount("-o", ",".join(["bind", *flags]), str(source), str(target))


def interpolated(text: str, variables: dict[str, str]) -> str:
    """Replace ${NAME:-default} and $$ as Compose does."""
    filled = re.sub(r"\$\{(\w+):[-?]([^}]*)\}", lambda match: variables.get(match[1], match[2]), text)
    return filled.replace("$$", "$")


def command(service: dict[str, Any]) -> list[str]:
    entrypoint = service.get("entrypoint") or ["tini", "--", "python", "-m"]
    return [*entrypoint, *service["command"]]


def run(machine: Machine, order: dict[str, Any]) -> dict[str, int]:
    """Train for `steps` with a teacher that is a copy of the first policy, then stop all containers in order.
    Return the exit status of each."""
    model, redis = machine.start("model"), machine.start("redis")
    machine.wait(model, lambda: model.process.poll() == 0, "making the model")
    machine.wait(redis, lambda: machine.is_healthy(redis), "health")
    pods = [machine.start("replay"), machine.start("verifier")]
    teacher = machine.deploy / "compose/state/models/teacher"
    shutil.copytree(teacher.with_name("policy"), teacher)
    for path in (teacher, *teacher.iterdir()):
        shutil.chown(path, *map(int, order["variables"]["SLIPSTREAM_USER"].split(":")))
    pods.append(machine.start("teacher"))
    for pod in pods:
        machine.wait(pod, lambda pod=pod: machine.is_ready(pod.name), "readiness")  # type: ignore[misc]
    learner = machine.start("learner")
    machine.addresses["rollout"] = "127.0.2.1"
    workers = [machine.start("rollout", replica=1)]
    machine.addresses["rollout"] = "127.0.2.2"
    workers.append(machine.start("rollout", replica=2))
    machine.addresses["rollout"] = "127.0.2.1"
    actor = machine.start("actor")
    last = f": step step={order['steps']} "
    machine.wait(learner, lambda: last in learner.log.read_text(), "training")
    return {c.root.parent.name: stop(c) for c in (actor, *workers, learner, *pods, redis)}


def stop(container: Running) -> int:
    container.process.send_signal(signal.SIGTERM)
    return container.process.wait(timeout=60)


def main() -> None:
    order = json.load(sys.stdin)
    if os.readlink("/proc/self/ns/net") == os.readlink(f"/proc/{os.getppid()}/ns/net"):
        raise SystemExit("composed: run it under `unshare --mount --net`")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    mount("-t", "tmpfs", "containers", order["folder"])
    machine = Machine(order, Path(order["folder"]))
    try:
        statuses = run(machine, order)
    finally:
        for container in machine.running:
            with suppress(ProcessLookupError):
                os.killpg(container.process.pid, signal.SIGKILL)  # the child of a killed tini would go on
    logs = {c.root.parent.name: c.log.read_text(encoding="utf-8") for c in machine.running}
    json.dump({"statuses": statuses, "logs": logs}, sys.stdout)


if __name__ == "__main__":
    main()
