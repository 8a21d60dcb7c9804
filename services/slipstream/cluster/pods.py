"""The pods of a release, as the API server reports them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from slipstream.cluster.api import Api, Json
from slipstream.cluster.release import COMPONENT, POOL, Release, label, sort_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod. `state`: its phase, or why it does not run. `metrics_port`: None for a pod without a metrics
    page."""

    name: str
    component: str
    pool: str
    state: str
    ready: bool
    restarts: int
    created: datetime
    node: str
    container: str
    metrics_port: int | None
    grace_seconds: int

    @property
    def title(self) -> str:
        """`verifier`, or `rollout/POOL`."""
        return f"{self.component}/{self.pool}" if self.pool else self.component

    @property
    def running(self) -> bool:
        """Whether its container has started and not ended."""
        return self.state in ("Running", "Terminating")


def pods_of(api: Api, release: Release) -> list[Pod]:
    """Return the pods of a release, in the order of COMPONENTS."""
    return sorted((_pod(item) for item in api.pods(release.selector)), key=sort_key)


def _pod(item: Json) -> Pod:
    metadata, spec, status = item["metadata"], item["spec"], item.get("status", {})
    containers = status.get("containerStatuses", [])
    conditions = {c["type"]: c["status"] for c in status.get("conditions", [])}
    ports = [port for container in spec["containers"] for port in container.get("ports", [])]
    return Pod(
        name=metadata["name"],
        component=label(item, COMPONENT),
        pool=label(item, POOL),
        state="Terminating" if metadata.get("deletionTimestamp") else _state(status),
        ready=conditions.get("Ready") == "True",
        restarts=sum(container.get("restartCount", 0) for container in containers),
        created=datetime.fromisoformat(metadata["creationTimestamp"]),
        node=spec.get("nodeName", ""),
        container=_main_container(item),
        metrics_port=next((port["containerPort"] for port in ports if port.get("name") == "metrics"), None),
        grace_seconds=int(spec.get("terminationGracePeriodSeconds", 30)),
    )


def _main_container(item: Json) -> str:
    """The chart names it by its component; others are sidecars."""
    names = [str(container["name"]) for container in item["spec"]["containers"]]
    return label(item, COMPONENT) if label(item, COMPONENT) in names else names[0]


def _state(status: Json) -> str:
    """Why a container waits, or why the pod has no node yet; else the phase."""
    containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    reasons: list[Any] = [c.get("state", {}).get("waiting", {}).get("reason") for c in containers]
    conditions = status.get("conditions", [])
    reasons += [c.get("reason") for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]
    return str(next((r for r in reasons if r and r != "PodInitializing"), status.get("phase", "Unknown")))
