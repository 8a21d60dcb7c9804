"""Policies about containers: resources, image, probes, environment, mounts."""

import re
from collections.abc import Iterable, Iterator

from chart.manifests import Document, pod_templates

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
HANDLERS = ("httpGet", "tcpSocket", "exec", "grpc")
TAGGED = re.compile(r"^[^@\s]+:(?P<tag>[\w][\w.-]*)(@sha256:[0-9a-f]{64})?$")
DIGESTED = re.compile(r"^[^@\s]+@sha256:[0-9a-f]{64}$")


def resources_are_stated(documents: Iterable[Document]) -> Iterator[str]:
    """A container has requests and limits of memory, requests of CPU, and equal ones of devices."""
    for pod in pod_templates(documents):
        for container in pod.all_containers:
            resources = container.get("resources") or {}
            requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
            missing = [f"requests.{key}" for key in ("cpu", "memory") if key not in requests]
            missing += ["limits.memory"] if "memory" not in limits else []
            for key in missing:
                yield f"{pod.name} {container['name']}: resources.{key} is not set"
            for device in (key for key in {*requests, *limits} if "/" in key):
                if requests.get(device, limits.get(device)) != limits.get(device):
                    yield f"{pod.name} {container['name']}: {device} is requested but not limited alike"


def images_are_pinned(documents: Iterable[Document]) -> Iterator[str]:
    """An image has a digest, or a tag other than `latest`."""
    for pod in pod_templates(documents):
        for container in pod.all_containers:
            image = container.get("image", "")
            tagged = TAGGED.match(image)
            if not (DIGESTED.match(image) or (tagged and tagged["tag"] != "latest")):
                yield f"{pod.name} {container['name']}: image {image!r} has no tag that stays"


def probes_are_apart(documents: Iterable[Document]) -> Iterator[str]:
    """The chart's container of a serving pod has three different probes, at existing ports."""
    for pod in pod_templates(documents):
        own = [container for container in pod.containers if container["name"] == pod.component]
        for container in own if pod.runs_on else []:
            where = f"{pod.name} {container['name']}"
            probes = {key: container[key] for key in PROBES if key in container}
            for key in set(PROBES) - set(probes):
                yield f"{where}: {key} is missing"
            questions = [str({key: probe.get(key) for key in HANDLERS}) for probe in probes.values()]
            if len(set(questions)) < len(questions):
                yield f"{where}: two probes ask the same"
            yield from _unknown_probe_ports(where, container, probes)


def _unknown_probe_ports(where: str, container: Document, probes: dict[str, Document]) -> Iterator[str]:
    ports = container.get("ports") or []
    port_names = {port.get("name") for port in ports} | {port["containerPort"] for port in ports}
    for key, probe in probes.items():
        handler = next((probe[kind] for kind in HANDLERS if kind in probe), {})
        if "port" in handler and handler["port"] not in port_names:
            yield f"{where}: {key} asks port {handler['port']}, which the container does not have"


def environment_names_are_unique(documents: Iterable[Document]) -> Iterator[str]:
    """Variable names are unique; of two variables with the same name the last one would win."""
    for pod in pod_templates(documents):
        for container in pod.all_containers:
            names = [variable["name"] for variable in container.get("env") or []]
            for name in {name for name in names if names.count(name) > 1}:
                yield f"{pod.name} {container['name']}: {name} is set twice"


def service_links_are_off(documents: Iterable[Document]) -> Iterator[str]:
    """Service links are off: they would add SLIPSTREAM_…_PORT variables in a release named slipstream."""
    for pod in pod_templates(documents):
        if pod.spec.get("enableServiceLinks") is not False:
            yield f"{pod.name}: enableServiceLinks is not false"


def mounts_have_volumes(documents: Iterable[Document]) -> Iterator[str]:
    """Every mount names a volume, no path is mounted twice, and every volume is mounted."""
    for pod in pod_templates(documents):
        claims = pod.owner.get("spec", {}).get("volumeClaimTemplates") or []
        volumes = {volume["name"] for volume in pod.spec.get("volumes") or []}
        volumes |= {claim["metadata"]["name"] for claim in claims}
        used = set()
        for container in pod.all_containers:
            mounts = container.get("volumeMounts") or []
            paths = [mount["mountPath"] for mount in mounts]
            used |= {mount["name"] for mount in mounts}
            for path in {path for path in paths if paths.count(path) > 1}:
                yield f"{pod.name} {container['name']}: {path} is mounted twice"
        for name in sorted(used - volumes):
            yield f"{pod.name}: no volume {name}"
        for name in sorted(volumes - used):
            yield f"{pod.name}: volume {name} is not mounted"
