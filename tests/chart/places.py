"""The ends of connections of a rendered release: its pods, other pods of the cluster, outside addresses."""

from collections.abc import Iterable

from chart.manifests import Document, pod_templates
from chart.reachability import Place


def pods_of(documents: Iterable[Document], *, namespace: str, prefix: str = "") -> list[Place]:
    """Return one pod of each component, and a second one of components whose pods call each other."""
    pods: dict[str, Place] = {}
    for pod in pod_templates(documents):
        for name in (pod.component, f"other {pod.component}"):
            if name not in pods and (name == pod.component or pod.component in ("learner", "rollout")):
                place = Place(name=prefix + name, namespace=namespace, labels=pod.labels, ports=pod.ports)
                pods[name] = place
    return list(pods.values())


DNS = Place(name="dns", namespace="kube-system", labels={"k8s-app": "kube-dns"}, address="10.9.0.1")
PROMETHEUS = Place(
    name="prometheus", namespace="monitoring", labels={"app": "prometheus"}, address="10.9.0.2"
)
STRANGER = Place(name="stranger", namespace="training", labels={"app": "other"}, address="10.9.0.3")
ELSEWHERE = Place(name="elsewhere", namespace="default", labels={"app": "other"}, address="10.9.0.4")
WORLD = Place(name="world", address="93.184.216.34")
AROUND = (DNS, PROMETHEUS, STRANGER, ELSEWHERE, WORLD)
