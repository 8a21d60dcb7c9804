"""The connections between pods, from the socket tables of the kernel."""

import subprocess
from dataclasses import dataclass

from chart.kubelet.machine import Machine

SECONDS = 10


@dataclass(frozen=True, slots=True, order=True)
class Connection:
    """A connection from a component to a component, and the listening port."""

    source: str
    target: str
    port: int


def connections(machine: Machine) -> set[Connection]:
    """Return every established TCP connection between pods."""
    component = {p.facts.pod_ip: str(p.labels["app.kubernetes.io/component"]) for p in machine.pods.values()}
    established = set()
    for pod in machine.pods.values():
        own = pod.facts.pod_ip
        listening = {port for _, port, _, _ in _sockets(pod.holder, "listening")}
        for _, local, peer, _remote in _sockets(pod.holder, "established"):
            if local in listening and peer in component:
                established.add(Connection(component[peer], component[own], local))
    return established


def _sockets(holder: int, state: str) -> list[tuple[str, int, str, int]]:
    """Yield (local address, port, peer address, port) of the sockets of a network namespace."""
    words = ["nsenter", f"--net=/proc/{holder}/ns/net", "ss", "-Htn", "state", state]
    text = subprocess.run(words, check=True, capture_output=True, text=True, timeout=SECONDS).stdout
    ends = [line.split()[2:4] for line in text.splitlines()]
    return [(*_end(local), *_end(peer)) for local, peer in ends]


def _end(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    return address.strip("[]").removeprefix("::ffff:"), int(port) if port.isdecimal() else 0
