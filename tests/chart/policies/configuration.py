"""Policies about the rendered configuration: its checksum, its addresses, its time to drain."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import yaml
from chart.manifests import Document, by_name, of_kind, pod_templates
from chart.rendering import merge

CHECKSUM = "checksum/config"
CONFIG_FILES = ("run.yaml", "cluster.yaml")
DEFAULT_GRACE_SECONDS = 30
ADDRESS = re.compile(r"^(?:\w+://)?(?P<host>[a-z][a-z0-9.-]*):(?P<port>\d+)(?:/\d+)?$")


def configuration(documents: Iterable[Document]) -> dict[str, Any]:
    """Return the configuration of the pods, cluster.yaml over run.yaml. Errors: ValueError without one."""
    for document in of_kind(documents, "ConfigMap"):
        data = document.get("data") or {}
        if set(CONFIG_FILES) <= set(data):
            below, above = (yaml.safe_load(data[name]) or {} for name in CONFIG_FILES)
            return merge(below, above)
    raise ValueError(f"no ConfigMap with {' and '.join(CONFIG_FILES)} was rendered")


def configured_pods_bear_its_checksum(documents: Iterable[Document]) -> Iterator[str]:
    """A pod that mounts a rendered ConfigMap is replaced when the ConfigMap changes."""
    documents = list(documents)
    maps = by_name(documents, "ConfigMap")
    for pod in pod_templates(documents):
        mounted = [(v.get("configMap") or {}).get("name") for v in pod.spec.get("volumes") or []]
        bears = (pod.metadata.get("annotations") or {}).get(CHECKSUM)
        if pod.runs_on and any(name in maps for name in mounted) and not bears:
            yield f"{pod.name}: annotation {CHECKSUM} is missing"


def addresses_are_served(documents: Iterable[Document]) -> Iterator[str]:
    """Every host of the configuration with a name of the release is a Service with that port."""
    documents = list(documents)
    services = by_name(documents, "Service")
    for where, text in _texts(configuration(documents), ""):
        match = ADDRESS.match(text)
        if match is None or match["host"] in ("localhost",):
            continue
        name = match["host"].split(".")[0]
        ports = [port["port"] for port in services.get(name, {}).get("spec", {}).get("ports", [])]
        if int(match["port"]) not in ports and not where.startswith("replay.redis_url"):
            yield f"{where}: {text} is no port of a rendered Service"
        if where.startswith("replay.redis_url") and name in services and int(match["port"]) not in ports:
            yield f"{where}: Service/{name} has no port {match['port']}"


def _texts(tree: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _texts(value, f"{where}.{key}".removeprefix("."))
    elif isinstance(tree, str):
        yield where, tree


def grace_exceeds_draining(documents: Iterable[Document]) -> Iterator[str]:
    """terminationGracePeriodSeconds exceeds the time of the preStop hook and of draining."""
    documents = list(documents)
    drain = float((configuration(documents).get("actor") or {}).get("drain_seconds", 0))
    for pod in pod_templates(documents):
        if not pod.runs_on:
            continue
        grace = pod.spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS)
        needed = max((pre_stop_seconds(c) for c in pod.containers), default=0)
        needed += drain if pod.component == "actor" else 0
        if grace <= needed:
            yield f"{pod.name}: a grace of {grace} s for {needed:g} s of preStop and draining"


def pre_stop_seconds(container: Document) -> float:
    """Return the seconds that the preStop hook sleeps. Errors: ValueError for a hook without a time."""
    hook = (container.get("lifecycle") or {}).get("preStop") or {}
    if not hook:
        return 0
    if "sleep" in hook:
        return float(hook["sleep"]["seconds"])
    words = " ".join((hook.get("exec") or {}).get("command") or [])
    sleep = re.search(r"sleep[\s(]+(\d+(?:\.\d+)?)", words)
    if sleep is None:
        raise ValueError(f"preStop of {container['name']} does not say how long it takes: {words}")
    return float(sleep[1])
