"""The names of Services and pods in the DNS of a cluster, as lines of /etc/hosts."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chart.manifests import Document, pod_selector, selects

DOMAIN = "cluster.local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A pod with the facts that Services need."""

    name: str
    address: str
    ready: bool
    labels: dict[str, str] = field(default_factory=dict)
    subdomain: str = ""
    """The headless Service that gives a StatefulSet's pod its own name."""


def hosts(services: Iterable[Document], members: Sequence[Member], *, namespace: str) -> list[str]:
    """Return lines for /etc/hosts. A Service without a ready pod has none.

    Errors: ValueError for a Service that translates ports, which /etc/hosts cannot express.
    """
    lines = ["127.0.0.1 localhost"]
    for service in services:
        _same_ports(service)
        late = service["spec"].get("publishNotReadyAddresses", False)
        selected = [m for m in members if (m.ready or late) and selects(pod_selector(service), m.labels)]
        name = service["metadata"]["name"]
        lines += [f"{member.address} {_forms(name, namespace)}" for member in selected]
        own = [m for m in selected if m.subdomain == name]
        lines += [f"{m.address} {_forms(f'{m.name}.{name}', namespace)}" for m in own]
    return lines


def write_in_place(path: Path, lines: Sequence[str]) -> None:
    """Overwrite a file that is bind-mounted; after a rename, the mount would still have the old file."""
    text = ("\n".join(lines) + "\n").encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, text, 0)
        os.ftruncate(descriptor, len(text))
    finally:
        os.close(descriptor)


def _forms(name: str, namespace: str) -> str:
    return " ".join(
        (name, f"{name}.{namespace}", f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.{DOMAIN}")
    )


def _same_ports(service: Document) -> None:
    for port in service["spec"].get("ports") or []:
        target = port.get("targetPort", port["port"])
        if isinstance(target, int) and target != port["port"]:
            raise ValueError(f"Service/{service['metadata']['name']} translates {port['port']} to {target}")
