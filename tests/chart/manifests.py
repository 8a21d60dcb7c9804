"""Queries over rendered objects: their pods, and the selectors and labels of pods."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]
NAME_LABEL, INSTANCE_LABEL = "app.kubernetes.io/name", "app.kubernetes.io/instance"
COMPONENT_LABEL = "app.kubernetes.io/component"
POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
WORKER_INDEX_LABEL = "leaderworkerset.sigs.k8s.io/worker-index"
WORKLOADS = ("Deployment", "StatefulSet", "Job", "LeaderWorkerSet", "Pod")
RUNS_ON = ("Deployment", "StatefulSet", "LeaderWorkerSet")
SELECTING_BY_LABELS = ("Deployment", "StatefulSet", "PodDisruptionBudget", "PodMonitor")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTemplate:
    """The template of the pods of a workload."""

    owner: Document
    metadata: Document
    spec: Document
    follows: bool = False
    """Whether the first pod of a group comes from another template of the LeaderWorkerSet."""

    @property
    def name(self) -> str:
        """Return Kind/name of the workload, for messages."""
        return f"{self.owner['kind']}/{self.owner['metadata']['name']}"

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of the template, with those that the controller adds to the first pod."""
        labels = dict(self.metadata.get("labels") or {})
        name = self.owner["metadata"]["name"]
        if self.owner["kind"] == "StatefulSet":
            labels[POD_NAME_LABEL] = f"{name}-0"
        elif self.owner["kind"] == "LeaderWorkerSet":
            labels |= group_labels(name, 1 if self.follows else 0)
        return labels

    @property
    def component(self) -> str:
        """Return the component of the pods."""
        return self.labels.get(COMPONENT_LABEL, "")

    @property
    def runs_on(self) -> bool:
        """Return true for pods that serve until they are stopped, false for pods that end by themselves."""
        return self.owner["kind"] in RUNS_ON

    @property
    def containers(self) -> list[Document]:
        """Return the containers without initial ones."""
        return list(self.spec.get("containers") or [])

    @property
    def all_containers(self) -> list[Document]:
        """Return all containers, initial ones first."""
        return list(self.spec.get("initContainers") or []) + self.containers

    @property
    def ports(self) -> dict[str, int]:
        """Return the container ports by name, or by number if a port has no name."""
        container_ports = [port for container in self.containers for port in container.get("ports") or []]
        return {
            port.get("name", str(port["containerPort"])): port["containerPort"] for port in container_ports
        }


def pod_templates(documents: Iterable[Document]) -> list[PodTemplate]:
    """Return the template of every pod of the objects, hooks included."""
    templates = []
    for document in documents:
        for number, template in enumerate(_templates_of(document)):
            metadata = template.get("metadata") or {}
            follows = number > 0
            templates.append(
                PodTemplate(owner=document, metadata=metadata, spec=template["spec"], follows=follows)
            )
    return templates


def group_labels(name: str, index: int) -> dict[str, str]:
    """Return the labels that StatefulSets add to a pod of the first group of a LeaderWorkerSet."""
    pod = f"{name}-0-{index}" if index else f"{name}-0"
    return {POD_NAME_LABEL: pod, WORKER_INDEX_LABEL: str(index)}


def _templates_of(document: Document) -> Iterator[Document]:
    kind, spec = document["kind"], document.get("spec") or {}
    if kind == "Pod":
        yield document
    elif kind == "LeaderWorkerSet":
        template = spec["leaderWorkerTemplate"]
        yield from (template[key] for key in ("leaderTemplate", "workerTemplate") if key in template)
    elif kind in WORKLOADS:
        yield spec["template"]


def of_kind(documents: Iterable[Document], *kinds: str) -> list[Document]:
    """Return the objects of these kinds."""
    return [document for document in documents if document["kind"] in kinds]


def by_name(documents: Iterable[Document], kind: str) -> dict[str, Document]:
    """Return the objects of a kind by name."""
    return {document["metadata"]["name"]: document for document in of_kind(documents, kind)}


def label(document: Document) -> str:
    """Return Kind/name, for messages."""
    return f"{document['kind']}/{document['metadata']['name']}"


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector (matchLabels and matchExpressions) matches labels; {} matches all."""
    if selector is None:
        return False
    equal = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return equal and all(_expressed(term, labels) for term in selector.get("matchExpressions") or [])


def _expressed(term: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = term["key"], term.get("values") or []
    table = {
        "In": labels.get(key) in values,
        "NotIn": labels.get(key) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }
    return table[term["operator"]]


def pod_selector(document: Document) -> dict[str, Any] | None:
    """Return the label selector by which an object selects pods; None if it selects none."""
    spec = document.get("spec") or {}
    if document["kind"] == "Service":
        return {"matchLabels": spec["selector"]} if spec.get("selector") else None
    if document["kind"] == "NetworkPolicy":
        return dict(spec["podSelector"])
    if document["kind"] in (
        "Deployment",
        "StatefulSet",
        "PodDisruptionBudget",
        "PodMonitor",
        "ServiceMonitor",
    ):
        return dict(spec["selector"])
    return None
