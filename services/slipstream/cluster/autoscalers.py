"""The autoscalers of a release: ScaledObjects of KEDA and HorizontalPodAutoscalers."""

from dataclasses import dataclass, replace

from slipstream.cluster.api import AUTOSCALER, SCALED_OBJECT, Api, Json
from slipstream.cluster.release import Release

HELD = "autoscaling.keda.sh/paused-replicas"
REMEMBERED = "slipstream.dev/paused-replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaler:
    """The owner of the number of replicas of a workload: a ScaledObject of KEDA or a HorizontalPodAutoscaler.

    `pressure`: the largest of its external metrics, when it last read them; above 1 it adds replicas.
    `held`: the number of replicas that an annotation makes KEDA keep; None if there is no such annotation.
    `remembered`: the annotation in which `pause` stores the earlier value of `held`; None outside of a pause.
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
    """Return the autoscalers, by the name of their workload.

    KEDA makes an HPA for each ScaledObject; such a pair is one autoscaler, with the pressure of the HPA.
    """
    names = {workload.name for workload in release.workloads}
    plain = {hpa.target: hpa for hpa in map(_plain, api.objects(AUTOSCALER)) if hpa.target in names}
    keda = {
        scaled.target: scaled for scaled in map(_keda, api.objects(SCALED_OBJECT)) if scaled.target in names
    }
    merged = {
        target: replace(scaled, pressure=plain[target].pressure) if target in plain else scaled
        for target, scaled in keda.items()
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
    """Parse a number as Kubernetes writes it: `1250m` is 1.25."""
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
