"""One installed release: its workloads, pods and autoscalers, as the API server knows them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from slipstream.cluster.api import AUTOSCALER, DEPLOYMENT, SCALED_OBJECT, STATEFUL_SET, Api, Json, Kind
from slipstream.cluster.errors import ClusterUsageError

NAME, INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
COMPONENT, POOL = "app.kubernetes.io/component", "slipstream.dev/pool"
OURS = f"{NAME}=slipstream"
COMPONENTS = ("learner", "rollout", "verifier", "replay", "redis")
HELD = "autoscaling.keda.sh/paused-replicas"
REMEMBERED = "slipstream.dev/paused-replicas"
KINDS = {"Deployment": DEPLOYMENT, "StatefulSet": STATEFUL_SET}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A Deployment or StatefulSet of the release, with how many pods it wants and has ready."""

    kind: str
    name: str
    component: str
    pool: str
    desired: int
    ready: int

    @property
    def title(self) -> str:
        """`verifier`, or `rollout/POOL`."""
        return f"{self.component}/{self.pool}" if self.pool else self.component

    @property
    def resource(self) -> Kind:
        """Its kind as the API's paths name it."""
        return KINDS[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod; `state` is its phase, or why it does not run. `metrics_port` is None without such a page."""

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
    def running(self) -> bool:
        """Whether its container has begun and not ended."""
        return self.state in ("Running", "Terminating")


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaler:
    """What owns the number of replicas of a workload: a ScaledObject of KEDA or a HorizontalPodAutoscaler.

    `pressure` is the largest of its external metrics, as it last saw them: above 1 it adds replicas.
    `held` is the number that KEDA is told to keep; `remembered` what `pause` has put aside, "" for no number.
    """

    kind: str
    name: str
    target: str
    minimum: int
    maximum: int
    pressure: float | None = None
    held: int | None = None
    remembered: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release and what it is made of."""

    name: str
    namespace: str
    workloads: tuple[Workload, ...]

    @property
    def selector(self) -> str:
        """The labels of all its objects."""
        return f"{OURS},{INSTANCE}={self.name}"

    @property
    def fullname(self) -> str:
        """What the names of its objects begin with."""
        return self.learner.name.removesuffix("-learner")

    def short(self, name: str) -> str:
        """The name of one of its objects without what all of them begin with."""
        return name.removeprefix(f"{self.fullname}-")

    @property
    def learner(self) -> Workload:
        """Its learner. Errors: ClusterUsageError when it has none."""
        found = [workload for workload in self.workloads if workload.component == "learner"]
        if not found:
            raise ClusterUsageError(f"release {self.name} has no learner: is its installation complete?")
        return found[0]

    @property
    def pools(self) -> tuple[Workload, ...]:
        """Its rollouts. Errors: ClusterUsageError when it has none."""
        found = tuple(workload for workload in self.workloads if workload.component == "rollout")
        if not found:
            raise ClusterUsageError(
                f"release {self.name} has no rollout pool: set rollout.pools in its values"
            )
        return found


def find_release(api: Api, name: str | None) -> Release:
    """The named release, or the only one. Errors: ClusterUsageError, with the releases that there are."""
    workloads = [(kind, item) for kind, resource in KINDS.items() for item in api.objects(resource, OURS)]
    names = sorted({_label(item, INSTANCE) for _, item in workloads})
    if name is None and len(names) > 1:
        raise ClusterUsageError(
            f"several releases in namespace {api.namespace}; choose --release {_or(names)}"
        )
    chosen = name if name is not None else next(iter(names), None)
    if chosen not in names:
        raise ClusterUsageError(_not_found(api, name, names))
    own = (_workload(kind, item) for kind, item in workloads if _label(item, INSTANCE) == chosen)
    return Release(name=chosen, namespace=api.namespace, workloads=tuple(sorted(own, key=_place)))


def pods_of(api: Api, release: Release) -> list[Pod]:
    """Its pods, in the order of the components."""
    return sorted((_pod(item) for item in api.pods(release.selector)), key=_place)


def autoscalers_of(api: Api, release: Release) -> dict[str, Autoscaler]:
    """The autoscalers by the name of their workload; KEDA's, where it has made an HPA of its own."""
    names = {workload.name for workload in release.workloads}
    plain = {found.target: found for found in map(_plain, api.objects(AUTOSCALER)) if found.target in names}
    keda = {found.target: found for found in map(_keda, api.objects(SCALED_OBJECT)) if found.target in names}
    merged = {
        target: replace(found, pressure=plain[target].pressure) if target in plain else found
        for target, found in keda.items()
    }
    return {**plain, **merged}


def _not_found(api: Api, name: str | None, here: Sequence[str]) -> str:
    what = "no Slipstream release" if name is None else f"no release {name!r}"
    if here:
        return f"{what} in namespace {api.namespace}; it has {', '.join(here)}"
    items = api.objects_everywhere(DEPLOYMENT, OURS)
    elsewhere = sorted({f"{_label(x, INSTANCE)} in {x['metadata']['namespace']}" for x in items})
    hint = f"found {', '.join(elsewhere)}" if elsewhere else "is --namespace or --context another one?"
    return f"{what} in namespace {api.namespace}; {hint}"


def _or(names: Sequence[str]) -> str:
    return " or ".join((", ".join(names[:-1]), names[-1]))


def _label(item: Json, key: str) -> str:
    return str(item["metadata"].get("labels", {}).get(key, ""))


def _place(item: Workload | Pod) -> tuple[int, str, str]:
    known = item.component in COMPONENTS
    return COMPONENTS.index(item.component) if known else len(COMPONENTS), item.pool, item.name


def _workload(kind: str, item: Json) -> Workload:
    return Workload(
        kind=kind,
        name=item["metadata"]["name"],
        component=_label(item, COMPONENT),
        pool=_label(item, POOL),
        desired=int(item["spec"].get("replicas", 1)),
        ready=int(item.get("status", {}).get("readyReplicas", 0)),
    )


def _pod(item: Json) -> Pod:
    metadata, spec, status = item["metadata"], item["spec"], item.get("status", {})
    containers = status.get("containerStatuses", [])
    conditions = {c["type"]: c["status"] for c in status.get("conditions", [])}
    ports = [port for container in spec["containers"] for port in container.get("ports", [])]
    return Pod(
        name=metadata["name"],
        component=_label(item, COMPONENT),
        pool=_label(item, POOL),
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
    return _label(item, COMPONENT) if _label(item, COMPONENT) in names else names[0]


def _state(status: Json) -> str:
    """Why a container waits, or why the pod has no node yet; else the phase."""
    containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    reasons: list[Any] = [c.get("state", {}).get("waiting", {}).get("reason") for c in containers]
    conditions = status.get("conditions", [])
    reasons += [c.get("reason") for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]
    return str(next((r for r in reasons if r and r != "PodInitializing"), status.get("phase", "Unknown")))


def _plain(item: Json) -> Autoscaler:
    spec = item["spec"]
    return Autoscaler(
        kind="HorizontalPodAutoscaler",
        name=item["metadata"]["name"],
        target=spec["scaleTargetRef"]["name"],
        minimum=int(spec.get("minReplicas", 1)),
        maximum=int(spec["maxReplicas"]),
        pressure=_pressure(item.get("status", {})),
    )


def _pressure(status: Json) -> float | None:
    metrics = [
        m["external"].get("current", {}) for m in status.get("currentMetrics") or [] if "external" in m
    ]
    return max((_quantity(current.get("value", "0")) for current in metrics), default=None)


def _quantity(text: str) -> float:
    """A number as Kubernetes writes it: `1250m` is 1.25."""
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def _keda(item: Json) -> Autoscaler:
    spec, annotations = item["spec"], item["metadata"].get("annotations", {})
    held = annotations.get(HELD)
    return Autoscaler(
        kind="ScaledObject",
        name=item["metadata"]["name"],
        target=spec["scaleTargetRef"]["name"],
        minimum=int(spec.get("minReplicaCount", 0)),
        maximum=int(spec.get("maxReplicaCount", 100)),
        held=int(held) if held is not None and held.isdecimal() else None,
        remembered=annotations.get(REMEMBERED),
    )
