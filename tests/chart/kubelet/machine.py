"""A cluster of one machine, for tests: it applies rendered objects and runs their pods as local processes.

    with Machine(directory, namespace=...) as machine:
        machine.add_secret(...); machine.apply(documents); machine.wait_until_ready(seconds=60)
It has no scheduler, no autoscaler and no network policies; other tests check those as pure functions.
"""

import base64
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from chart.kubelet.asking import get
from chart.kubelet.environment import Facts, Store
from chart.kubelet.names import Member, hosts, write_in_place
from chart.kubelet.network import IPV4, Family, Network, inside_network
from chart.kubelet.pod import Pod
from chart.kubelet.volumes import Volumes
from chart.manifests import POD_NAME_LABEL, Document, PodTemplate, group_labels, of_kind, pod_templates

NODE_NAME = "node-0"
HOOK = "helm.sh/hook"
POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"
NAMES_SECONDS = 0.25
STOP_SECONDS = 120.0


class Machine:
    """A machine with ConfigMaps, Secrets and pods by name."""

    def __init__(self, directory: Path, *, namespace: str, family: Family = IPV4) -> None:
        self.pods: dict[str, Pod] = {}
        self.ended: list[Pod] = []
        """Pods that were deleted or have ended."""
        self._directory, self._namespace, self._family = directory, namespace, family
        self._store = Store(config_maps={}, secrets={})
        self._services: list[Document] = []
        self._templates: dict[str, PodTemplate] = {}
        self._made = 0
        self._closing = threading.Event()
        (directory / "logs").mkdir(parents=True)

    def __enter__(self) -> "Machine":
        self.network = Network(self._family)
        self._names = threading.Thread(target=self._keep_names, daemon=True)
        self._names.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pod in self.pods.values():
            pod.stop()
            for container in pod.running:
                container.container.kill()
        for pod in self.pods.values():
            pod.wait(STOP_SECONDS)
        self._closing.set()
        self._names.join()
        self.network.close()

    def add_secret(self, name: str, data: Mapping[str, bytes]) -> None:
        """Add a Secret that the user creates."""
        self._store = Store(config_maps=self._store.config_maps, secrets={**self._store.secrets, name: data})

    def apply(self, documents: Iterable[Document]) -> None:
        """Create the objects and start their pods, except hooks; `run_hooks` runs those."""
        documents = [d for d in documents if HOOK not in (d["metadata"].get("annotations") or {})]
        self._learn(documents)
        for template in pod_templates(documents):
            for index in _indices(template):
                self._start(template, index)

    def run_hooks(self, documents: Iterable[Document], *, event: str, seconds: float) -> dict[str, Pod]:
        """Run the pods of a hook in sequence, and return the ended pods by name.

        Errors: TimeoutError for a pod that does not end in time.
        """
        hooks = [
            d for d in documents if event in (d["metadata"].get("annotations") or {}).get(HOOK, "").split(",")
        ]
        self._learn(hooks)
        ended = {}
        weight = lambda t: int(t.owner["metadata"]["annotations"].get("helm.sh/hook-weight", 0))  # noqa: E731
        for template in sorted(pod_templates(hooks), key=weight):
            pod = self._start(template, None)
            if not pod.wait(seconds):
                raise TimeoutError(f"{pod.name} did not end within {seconds:g} s:\n{pod.log}")
            ended[pod.name] = pod
        return ended

    def of_component(self, component: str) -> list[Pod]:
        """Return the pods of a component."""
        return [p for p in self.pods.values() if p.labels.get("app.kubernetes.io/component") == component]

    def delete(self, name: str, *, replace: bool) -> Pod:
        """Stop a pod; with `replace`, its controller creates another. Errors: TimeoutError."""
        pod = self.pods[name]
        pod.stop()
        if not pod.wait(STOP_SECONDS):
            raise TimeoutError(f"{name} did not end:\n{pod.log}")
        del self.pods[name]
        self.ended.append(pod)
        self.network.remove(pod.holder)
        if replace:
            self.recreate(name)
        return pod

    def recreate(self, name: str) -> Pod:
        """Create another pod in place of a deleted one, as its controller does."""
        template = self._templates[name]
        return self._start(template, _index_of(template.owner, name))

    def wait_until_ready(self, *, seconds: float) -> None:
        """Wait until all pods are ready. Errors: TimeoutError with the unready pods and the reasons."""
        deadline = time.monotonic() + seconds
        while not all(pod.ready for pod in self.pods.values()):
            if time.monotonic() > deadline:
                raise TimeoutError("\n".join(self._why(p) for p in self.pods.values() if not p.ready))
            time.sleep(0.1)

    def get(self, pod: Pod, path: str, *, port: int = 9464, seconds: float = 5.0) -> tuple[int, str]:
        """Return status and body of a GET from the machine to a pod. Errors: OSError, HTTPException."""
        with inside_network(self.network.node):
            return get(pod.facts.pod_ip, port, path, seconds)

    def names(self) -> list[str]:
        """Return the names that pods can resolve now, as lines of /etc/hosts."""
        members = [self._member(pod) for pod in list(self.pods.values())]
        return hosts(self._services, members, namespace=self._namespace)

    def _learn(self, documents: list[Document]) -> None:
        maps, secrets = dict(self._store.config_maps), dict(self._store.secrets)
        for document in of_kind(documents, "ConfigMap"):
            plain = {key: text.encode() for key, text in (document.get("data") or {}).items()}
            binary = {key: base64.b64decode(text) for key, text in (document.get("binaryData") or {}).items()}
            maps[document["metadata"]["name"]] = {**plain, **binary}
        for document in of_kind(documents, "Secret"):
            plain = {key: text.encode() for key, text in (document.get("stringData") or {}).items()}
            binary = {key: base64.b64decode(text) for key, text in (document.get("data") or {}).items()}
            secrets[document["metadata"]["name"]] = {**binary, **plain}
        self._store = Store(config_maps=maps, secrets=secrets)
        self._services += of_kind(documents, "Service")

    def _start(self, template: PodTemplate, index: int | None) -> Pod:
        owner = template.owner
        name = self._name_of(owner, index)
        labels = template.labels
        if owner["kind"] == "StatefulSet":
            labels |= {POD_NAME_LABEL: name, POD_INDEX_LABEL: str(index)}
        elif owner["kind"] == "LeaderWorkerSet" and index is not None:
            labels |= group_labels(owner["metadata"]["name"], index)
        holder, address = self.network.add()
        directory = self._directory / f"{name}.{self._made}"
        directory.mkdir()
        write_in_place(directory / "hosts", [*self.names(), f"{address} {name}"])
        facts = Facts(
            pod_name=name,
            namespace=self._namespace,
            pod_ip=address,
            node_name=NODE_NAME,
            node_ip=self.network.node_address,
            metadata={"labels": labels, "annotations": template.metadata.get("annotations") or {}},
            service_account=template.spec.get("serviceAccountName", "default"),
        )
        claims = self._directory / "claims"
        volumes = Volumes(pod_directory=directory, claims=claims, store=self._store, facts=facts)
        pod = Pod(
            facts=facts,
            spec=template.spec,
            labels=labels,
            store=self._store,
            volumes=volumes,
            claim_templates=owner["spec"].get("volumeClaimTemplates") or [],
            holder=holder,
            node=self.network.node,
            log_directory=self._log_directory(name),
            job=not template.runs_on,
        )
        self._templates[name] = template
        (self.ended.append(pod) if pod.job else self.pods.__setitem__(name, pod))
        pod.start()
        return pod

    def _name_of(self, owner: Document, index: int | None) -> str:
        self._made += 1
        name = str(owner["metadata"]["name"])
        if owner["kind"] == "Pod":
            return name
        if owner["kind"] == "LeaderWorkerSet" and index is not None:
            return group_labels(name, index)[POD_NAME_LABEL]
        return f"{name}-{index}" if owner["kind"] == "StatefulSet" else f"{name}-6d5f-{self._made}"

    def _log_directory(self, name: str) -> Path:
        path = self._directory / "logs" / f"{name}.{self._made}"
        path.mkdir()
        return path

    def _keep_names(self) -> None:
        """Update the names in every pod until the end."""
        while not self._closing.wait(NAMES_SECONDS):
            lines = self.names()
            for pod in [*self.pods.values(), *self.ended]:
                own = f"{pod.facts.pod_ip} {pod.name}"
                write_in_place(pod.volumes.pod_directory / "hosts", [*lines, own])

    def _member(self, pod: Pod) -> Member:
        subdomain = self._templates[pod.name].owner["spec"].get("serviceName", "")
        return Member(
            name=pod.name,
            address=pod.facts.pod_ip,
            ready=pod.ready,
            labels=dict(pod.labels),
            subdomain=subdomain,
        )

    def _why(self, pod: Pod) -> str:
        details: list[Any] = [
            f"{kind}: {v.detail}" for c in pod.running for kind, v in c.verdicts.items() if v.detail
        ]
        return f"{pod.name} is not ready: {pod.problem or '; '.join(details)}\n{pod.log[-3000:]}"


def _indices(template: PodTemplate) -> range:
    """Return the indices of the pods of a template; for a LeaderWorkerSet, those of one group."""
    owner = template.owner
    if owner["kind"] != "LeaderWorkerSet":
        return range(owner["spec"].get("replicas", 1))
    group = owner["spec"]["leaderWorkerTemplate"]
    if "leaderTemplate" not in group:
        return range(group["size"])
    return range(1, group["size"]) if template.follows else range(1)


def _index_of(owner: Document, name: str) -> int:
    """Return the index of a pod in its workload; 0 if its pods have none."""
    if owner["kind"] == "LeaderWorkerSet":
        return int(name.removeprefix(f"{owner['metadata']['name']}-0").removeprefix("-") or 0)
    return int(name.rpartition("-")[2]) if owner["kind"] == "StatefulSet" else 0
