"""Everything that objects name exists: keys of ConfigMaps and Secrets, claims, scaled workloads."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from chart.manifests import Document, by_name, label, of_kind, pod_templates

AUTOSCALERS = ("ScaledObject", "HorizontalPodAutoscaler")


def mounted_keys_exist(documents: Iterable[Document], external: Collection[str] = ()) -> Iterator[str]:
    """Every ConfigMap and Secret that a pod uses is rendered with that key, or is in `external`."""
    documents = list(documents)
    for pod in pod_templates(documents):
        for kind, name, keys, optional in _uses(pod.spec):
            if optional or name in external:
                continue
            object_keys = _data(documents, kind, name)
            if object_keys is None:
                yield f"{pod.name}: no {kind} {name}"
                continue
            yield from (f"{pod.name}: {kind} {name} has no {key}" for key in keys if key not in object_keys)


def _data(documents: list[Document], kind: str, name: str) -> set[str] | None:
    """Return the keys of a rendered object; a Certificate counts as the Secret that it creates."""
    document = by_name(documents, kind).get(name)
    if document is not None:
        return {*(document.get("data") or {}), *(document.get("stringData") or {})}
    made = [d for d in of_kind(documents, "Certificate") if d["spec"]["secretName"] == name]
    return {"tls.crt", "tls.key", "ca.crt"} if made and kind == "Secret" else None


def _uses(spec: Document) -> Iterator[tuple[str, str, list[str], bool]]:
    """Yield (kind, name, keys, optional) of each use."""
    for volume in spec.get("volumes") or []:
        sources = [volume, *((volume.get("projected") or {}).get("sources") or [])]
        for source in sources:
            yield from _volume_uses(source)
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        for variable in container.get("env") or []:
            origin = variable.get("valueFrom") or {}
            for key, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
                if key in origin:
                    use = origin[key]
                    yield kind, use["name"], [use["key"]], bool(use.get("optional"))
        for origin in container.get("envFrom") or []:
            for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
                if key in origin:
                    yield kind, origin[key]["name"], [], bool(origin[key].get("optional"))


def _volume_uses(source: Document) -> Iterator[tuple[str, str, list[str], bool]]:
    for key, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
        use: dict[str, Any] = source.get(key) or {}
        name = use.get("secretName", use.get("name"))
        if name:
            yield kind, name, [item["key"] for item in use.get("items") or []], bool(use.get("optional"))


def sub_paths_exist(documents: Iterable[Document]) -> Iterator[str]:
    """A single file that is mounted from a rendered ConfigMap exists in it."""
    documents = list(documents)
    maps = by_name(documents, "ConfigMap")
    for pod in pod_templates(documents):
        sources = {v["name"]: (v.get("configMap") or {}).get("name") for v in pod.spec.get("volumes") or []}
        for container in pod.all_containers:
            for mount in container.get("volumeMounts") or []:
                source, path = sources.get(mount["name"]), mount.get("subPath")
                if path and source in maps and path not in (maps[source].get("data") or {}):
                    yield f"{pod.name}: ConfigMap {source} has no {path}"


def claims_exist(documents: Iterable[Document], external: Collection[str] = ()) -> Iterator[str]:
    """Every PersistentVolumeClaim that a pod mounts is rendered, or is in `external`."""
    documents = list(documents)
    claims = by_name(documents, "PersistentVolumeClaim")
    for pod in pod_templates(documents):
        for volume in pod.spec.get("volumes") or []:
            name = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if name and name not in claims and name not in external:
                yield f"{pod.name}: no PersistentVolumeClaim {name}"


def autoscaled_workloads_have_no_replicas(documents: Iterable[Document]) -> Iterator[str]:
    """An autoscaled workload exists and sets no replicas: an upgrade would undo the autoscaler's choice."""
    documents = list(documents)
    for scaler in of_kind(documents, *AUTOSCALERS):
        target = scaler["spec"]["scaleTargetRef"]
        kind = target.get("kind", "Deployment")
        workload = by_name(documents, kind).get(target["name"])
        if workload is None:
            yield f"{label(scaler)} scales {kind}/{target['name']}, which is not there"
        elif "replicas" in workload["spec"]:
            yield f"{label(workload)} states replicas, which {label(scaler)} owns"


def one_scaler_each(documents: Iterable[Document]) -> Iterator[str]:
    """No workload has two autoscalers, which would contradict each other."""
    targets = [str(d["spec"]["scaleTargetRef"]["name"]) for d in of_kind(documents, *AUTOSCALERS)]
    yield from (f"{name} has two autoscalers" for name in sorted(set(targets)) if targets.count(name) > 1)
