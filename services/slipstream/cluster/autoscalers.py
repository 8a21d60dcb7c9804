"""What owns the number of replicas of a workload, where something does."""

from dataclasses import dataclass, replace

from slipstream.cluster.api import AUTOSCALER, SCALED_OBJECT, Api, Json
from slipstream.cluster.release import Release

HELD = "autoscaling.keda.sh/paused-replicas"
REMEMBERED = "slipstream.dev/paused-replicas"


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
