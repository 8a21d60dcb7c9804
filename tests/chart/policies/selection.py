"""Policies about selectors of workloads, Services, budgets, monitors and network policies."""

from collections.abc import Iterable, Iterator

from chart.manifests import (
    COMPONENT_LABEL,
    INSTANCE_LABEL,
    NAME_LABEL,
    Document,
    PodTemplate,
    label,
    of_kind,
    pod_selector,
    pod_templates,
    selects,
)

LABELS = (
    NAME_LABEL,
    INSTANCE_LABEL,
    COMPONENT_LABEL,
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/version",
    "helm.sh/chart",
)
SELECTING = ("Service", "PodDisruptionBudget", "PodMonitor", "NetworkPolicy")


def objects_are_labelled(documents: Iterable[Document]) -> Iterator[str]:
    """Every object and pod has the common labels; objects for all components have no component label."""
    documents = list(documents)
    labelled = [(label(d), d["metadata"].get("labels") or {}) for d in documents]
    labelled += [(f"pods of {pod.name}", pod.labels) for pod in pod_templates(documents)]
    for where, labels in labelled:
        for key in LABELS:
            wanted = key != COMPONENT_LABEL or where.startswith("pods of")
            if wanted and not labels.get(key):
                yield f"{where}: label {key} is missing"


def workloads_select_their_pods(documents: Iterable[Document]) -> Iterator[str]:
    """A workload selects its own pods and no others."""
    pods = pod_templates(documents)
    for pod in pods:
        if pod.owner["kind"] not in ("Deployment", "StatefulSet"):
            continue
        selector = pod_selector(pod.owner)
        if not selects(selector, pod.labels):
            yield f"{pod.name}: its selector does not match its pods"
        for other in pods:
            if other is not pod and selects(selector, other.labels):
                yield f"{pod.name}: its selector also matches the pods of {other.name}"


def selectors_find_pods(documents: Iterable[Document]) -> Iterator[str]:
    """Services, budgets, monitors and network policies select existing pods."""
    documents = list(documents)
    pods = pod_templates(documents)
    for document in of_kind(documents, *SELECTING):
        selector = pod_selector(document)
        if selector is not None and not any(selects(selector, pod.labels) for pod in pods):
            yield f"{label(document)} selects no pod"


def services_reach_ports(documents: Iterable[Document]) -> Iterator[str]:
    """A Service selects pods of one component, and its target ports exist."""
    documents = list(documents)
    for service in of_kind(documents, "Service"):
        pods = [pod for pod in pod_templates(documents) if selects(pod_selector(service), pod.labels)]
        if len({pod.component for pod in pods}) > 1:
            yield f"{label(service)} mixes {', '.join(sorted(pod.component for pod in pods))}"
        for port in service["spec"]["ports"]:
            yield from _unknown_target(service, port, pods)


def _unknown_target(service: Document, port: Document, pods: list[PodTemplate]) -> Iterator[str]:
    target = port.get("targetPort", port["port"])
    for pod in pods:
        if target not in pod.ports and target not in pod.ports.values():
            yield f"{label(service)}: {pod.name} has no port {target}"


def monitors_find_ports(documents: Iterable[Document]) -> Iterator[str]:
    """Every pod that a PodMonitor selects has the ports that it scrapes."""
    documents = list(documents)
    for monitor in of_kind(documents, "PodMonitor"):
        for pod in pod_templates(documents):
            if selects(pod_selector(monitor), pod.labels):
                for endpoint in monitor["spec"]["podMetricsEndpoints"]:
                    if endpoint["port"] not in pod.ports:
                        yield f"{label(monitor)}: {pod.name} has no port {endpoint['port']}"


def names_are_unique(documents: Iterable[Document]) -> Iterator[str]:
    """No object is rendered twice."""
    names = [f"{d['apiVersion']} {label(d)}" for d in documents]
    yield from (f"{name} is rendered twice" for name in sorted(set(names)) if names.count(name) > 1)


def releases_are_apart(one: Iterable[Document], other: Iterable[Document]) -> Iterator[str]:
    """Two releases in one namespace share no object, and neither selects pods of the other."""
    one, other = list(one), list(other)
    for name in sorted({label(d) for d in one} & {label(d) for d in other}):
        yield f"{name} is in both releases"
    for documents, others in ((one, other), (other, one)):
        for document in of_kind(documents, *SELECTING, "Deployment", "StatefulSet"):
            for pod in pod_templates(others):
                if selects(pod_selector(document), pod.labels):
                    yield f"{label(document)} also selects {pod.name} of the other release"
