"""The Kubernetes objects of a release, as the chart makes them: a learner, two pools, actors, services."""

from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

Json = dict[str, Any]
FULL = "run1-slipstream"
KEDA, PLAIN = f"{FULL}-rollout-spot", f"{FULL}-rollout-steady"
PODS = {
    "learner": (f"{FULL}-learner-0",),
    "rollout/steady": (f"{PLAIN}-7d9f8b6c5-x2x4z", f"{PLAIN}-7d9f8b6c5-9kq7m"),
    "rollout/spot": (f"{KEDA}-5c6d7f8b9-ab12c",),
    "actor": (f"{FULL}-actor-5d8c7b6f9-qqqq1", f"{FULL}-actor-5d8c7b6f9-qqqq2"),
    "verifier": (f"{FULL}-verifier-6f7c8d9b4-tttt1",),
    "replay": (f"{FULL}-replay-7b8c9d6f5-rrrr1",),
    "redis": (f"{FULL}-redis-0",),
}


def release(*, instance: str = "run1", namespace: str = "team") -> dict[str, list[Json]]:
    """Return all objects of a release by the plural of their kind."""
    deployments = [
        workload(PLAIN, "rollout", 2, pool="steady"),
        workload(KEDA, "rollout", 1, pool="spot"),
        workload(f"{FULL}-actor", "actor", 2),
        workload(f"{FULL}-verifier", "verifier", 1),
        workload(f"{FULL}-replay", "replay", 1),
    ]
    stateful = [workload(f"{FULL}-learner", "learner", 1), workload(f"{FULL}-redis", "redis", 1)]
    pods = [pod(name, *title.split("/")) for title, names in PODS.items() for name in names]
    objects = {
        "deployments": deployments,
        "statefulsets": stateful,
        "pods": pods,
        "horizontalpodautoscalers": [
            autoscaler("keda-hpa-spot", KEDA, 1, 8, pressure="1250m"),
            autoscaler(f"{FULL}-verifier", f"{FULL}-verifier", 1, 4),
            autoscaler("of-somebody-else", "another", 1, 2),
        ],
        "scaledobjects": [scaled_object(KEDA, 0, 8), scaled_object(f"{FULL}-actor", 2, 16)],
    }
    for item in [*deployments, *stateful, *pods]:
        item["metadata"]["labels"]["app.kubernetes.io/instance"] = instance
    for items in objects.values():
        for item in items:
            item["metadata"]["namespace"] = namespace
    return objects


def spanning(cluster_objects: dict[str, list[Json]]) -> str:
    """Turn the pool without an autoscaler into a LeaderWorkerSet of groups of pods, and return its name."""
    (plain,) = [d for d in cluster_objects["deployments"] if d["metadata"]["name"] == PLAIN]
    cluster_objects["deployments"].remove(plain)
    cluster_objects["leaderworkersets"] = [plain]
    return PLAIN


def grouped_learner(cluster_objects: dict[str, list[Json]]) -> str:
    """Turn the learner into a group of two pods, and return its name, which its StatefulSet shares."""
    name = f"{FULL}-learner"
    (stateful,) = [item for item in cluster_objects["statefulsets"] if item["metadata"]["name"] == name]
    cluster_objects["leaderworkersets"] = [deepcopy(stateful)]
    stateful["metadata"]["ownerReferences"] = [{"kind": "LeaderWorkerSet", "name": name, "controller": True}]
    (first,) = [item for item in cluster_objects["pods"] if item["metadata"]["name"] == f"{name}-0"]
    second = deepcopy(first)
    second["metadata"]["name"] = f"{name}-0-1"
    cluster_objects["pods"].append(second)
    return name


def labels(component: str, pool: str = "") -> dict[str, str]:
    """Return the labels that the chart puts on every object."""
    common = {"app.kubernetes.io/name": "slipstream", "app.kubernetes.io/component": component}
    return {**common, "slipstream.dev/pool": pool} if pool else common


def workload(name: str, component: str, replicas: int, *, pool: str = "") -> Json:
    """Return a Deployment or a StatefulSet."""
    return {
        "metadata": {"name": name, "labels": labels(component, pool)},
        "spec": {"replicas": replicas},
        "status": {"readyReplicas": replicas},
    }


def pod(name: str, component: str, pool: str = "") -> Json:
    """Return a pod that runs and is ready; every pod but Redis has a metrics page."""
    ports = [{"name": "metrics", "containerPort": 9464}] if component != "redis" else []
    return {
        "metadata": {
            "name": name,
            "labels": labels(component, pool),
            "creationTimestamp": (datetime.now(UTC) - timedelta(hours=3, minutes=5)).isoformat(),
        },
        "spec": {
            "nodeName": f"{component}-node-{name[-1]}.example.internal",
            "terminationGracePeriodSeconds": 90,
            "containers": [{"name": "sidecar"}, {"name": component, "ports": ports}],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"restartCount": 0, "state": {"running": {}}}],
        },
    }


def autoscaler(name: str, target: str, least: int, most: int, *, pressure: str = "") -> Json:
    """Return a HorizontalPodAutoscaler."""
    external = {"type": "External", "external": {"current": {"value": pressure}}}
    return {
        "metadata": {"name": name},
        "spec": {"scaleTargetRef": {"name": target}, "minReplicas": least, "maxReplicas": most},
        "status": {"currentMetrics": [external] if pressure else None},
    }


def scaled_object(target: str, least: int, most: int) -> Json:
    """Return a ScaledObject of KEDA."""
    return {
        "metadata": {"name": target},
        "spec": {"scaleTargetRef": {"name": target}, "minReplicaCount": least, "maxReplicaCount": most},
    }
