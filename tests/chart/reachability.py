"""Which connections NetworkPolicies allow, by the definition of Kubernetes.

See https://kubernetes.io/docs/concepts/services-networking/network-policies/. Both ends have to allow a
connection. A direction of a pod is open if no policy selects the pod for it; otherwise a rule has to match.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from itertools import product
from typing import Any, Literal

from chart.manifests import Document, of_kind, selects

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
Direction = Literal["Ingress", "Egress"]
Edge = tuple[str, str, int, str]
"""An allowed connection: source, target, port, protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An end of a connection: a pod, or an address outside of the cluster (without a namespace)."""

    name: str
    namespace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = "10.0.0.1"
    ports: Mapping[str, int] = field(default_factory=dict)
    """Container ports by name."""


def reached(
    policies: Sequence[Document], places: Iterable[Place], ports: Iterable[tuple[int, str]]
) -> set[Edge]:
    """Return every edge between two different ends that the policies allow."""
    pairs, ports = list(product(list(places), repeat=2)), list(ports)
    return {
        (source.name, target.name, port, protocol)
        for source, target in pairs
        for port, protocol in ports
        if source is not target and passes(policies, source, target, port=port, protocol=protocol)
    }


def passes(
    policies: Sequence[Document], source: Place, target: Place, *, port: int, protocol: str = "TCP"
) -> bool:
    """Return whether the policies at both ends allow a connection."""
    leaves = _direction(
        policies, "Egress", at=source, peer=target, target=target, port=port, protocol=protocol
    )
    enters = _direction(
        policies, "Ingress", at=target, peer=source, target=target, port=port, protocol=protocol
    )
    return leaves and enters


def _direction(
    policies: Sequence[Document],
    direction: Direction,
    *,
    at: Place,
    peer: Place,
    target: Place,
    port: int,
    protocol: str,
) -> bool:
    governing = [policy for policy in policies if _governs(policy, direction, at)]
    if not governing:
        return True
    rules_key, peers_key = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
    return any(
        _peer_matches(rule.get(peers_key), peer, namespace=policy["metadata"]["namespace"])
        and _port_matches(rule.get("ports"), target, port=port, protocol=protocol)
        for policy in governing
        for rule in policy["spec"].get(rules_key) or []
    )


def _governs(policy: Document, direction: Direction, place: Place) -> bool:
    spec = policy["spec"]
    default = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
    same = place.namespace is not None and policy["metadata"]["namespace"] == place.namespace
    applies = direction in (spec.get("policyTypes") or default)
    return same and applies and selects(spec["podSelector"], place.labels)


def _peer_matches(peers: list[Document] | None, place: Place, *, namespace: str) -> bool:
    return not peers or any(_one_peer_matches(peer, place, namespace=namespace) for peer in peers)


def _one_peer_matches(peer: Document, place: Place, *, namespace: str) -> bool:
    if "ipBlock" in peer:
        return _in_block(peer["ipBlock"], place.address)
    if place.namespace is None:
        return False
    of_namespace = {NAMESPACE_LABEL: place.namespace}
    in_namespace = (
        selects(peer["namespaceSelector"], of_namespace)
        if "namespaceSelector" in peer
        else place.namespace == namespace
    )
    return in_namespace and selects(peer.get("podSelector", {}), place.labels)


def _in_block(block: Document, address: str) -> bool:
    parsed_address = ip_address(address)
    excluded = any(parsed_address in ip_network(part) for part in block.get("except") or [])
    return parsed_address in ip_network(block["cidr"]) and not excluded


def _port_matches(ports: list[Document] | None, target: Place, *, port: int, protocol: str) -> bool:
    return not ports or any(_one_port_matches(rule, target, port=port, protocol=protocol) for rule in ports)


def _one_port_matches(rule: Document, target: Place, *, port: int, protocol: str) -> bool:
    if rule.get("protocol", "TCP") != protocol:
        return False
    first: Any = rule.get("port")
    if first is None:
        return True
    if isinstance(first, str):
        return target.ports.get(first) == port
    return bool(first <= port <= rule.get("endPort", first))


def network_policies(documents: Iterable[Document], *, namespace: str) -> list[Document]:
    """Return the policies among the objects; without a namespace they are in that of the release."""
    policies = of_kind(documents, "NetworkPolicy")
    return [{**p, "metadata": {"namespace": namespace, **p["metadata"]}} for p in policies]
