"""Environment, command and arguments of a container, as Kubernetes resolves them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
LABEL_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Values of the downward API."""

    pod_name: str
    namespace: str
    pod_ip: str
    node_name: str
    node_ip: str
    metadata: Mapping[str, Any]
    service_account: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """ConfigMaps and Secrets by name; each is a mapping of keys to bytes."""

    config_maps: Mapping[str, Mapping[str, bytes]]
    secrets: Mapping[str, Mapping[str, bytes]]


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by the variable if it exists, and `$$` by a dollar sign."""

    def one(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return environment.get(match[1], match[0])

    return REFERENCE.sub(one, text)


def container_environment(
    container: Mapping[str, Any], *, image: Mapping[str, str], facts: Facts, store: Store
) -> dict[str, str]:
    """Merge the variables of the image, envFrom and env; later ones win. Errors: KeyError."""
    variables = dict(image)
    for origin in container.get("envFrom") or []:
        prefix = origin.get("prefix", "")
        for key, value in _keys_of(origin, store).items():
            variables[prefix + key] = value.decode()
    own: dict[str, str] = {}
    for variable in container.get("env") or []:
        value = _value_of(variable, container, facts=facts, store=store, variables={**variables, **own})
        if value is not None:
            own[variable["name"]] = value
    return {**variables, **own}


def command_line(
    container: Mapping[str, Any],
    *,
    entrypoint: Sequence[str],
    default: Sequence[str],
    variables: Mapping[str, str],
) -> list[str]:
    """Return command and arguments of a container, with those of the image as the default."""
    command, arguments = container.get("command"), container.get("args")
    if command is None:
        words = [*entrypoint, *(default if arguments is None else arguments)]
    else:
        words = [*command, *(arguments or [])]
    return [expand(str(word), variables) for word in words]


def _keys_of(origin: Mapping[str, Any], store: Store) -> Mapping[str, bytes]:
    for key, table in (("configMapRef", store.config_maps), ("secretRef", store.secrets)):
        if key in origin:
            reference = origin[key]
            return table.get(reference["name"], {}) if reference.get("optional") else table[reference["name"]]
    raise KeyError(f"envFrom {dict(origin)} is neither a ConfigMap nor a Secret")


def _value_of(
    variable: Mapping[str, Any],
    container: Mapping[str, Any],
    *,
    facts: Facts,
    store: Store,
    variables: Mapping[str, str],
) -> str | None:
    origin = variable.get("valueFrom")
    if origin is None:
        return expand(str(variable.get("value", "")), variables)
    if "fieldRef" in origin:
        return field_value(origin["fieldRef"]["fieldPath"], facts)
    if "resourceFieldRef" in origin:
        return _resource_value(origin["resourceFieldRef"], container)
    for key, table in (("configMapKeyRef", store.config_maps), ("secretKeyRef", store.secrets)):
        if key in origin:
            reference = origin[key]
            content = table.get(reference["name"], {}).get(reference["key"])
            if content is None and not reference.get("optional"):
                raise KeyError(f"{variable['name']}: no {reference['key']} in {reference['name']}")
            return None if content is None else content.decode()
    raise KeyError(f"{variable['name']}: no such source as {', '.join(origin)}")


def field_value(path: str, facts: Facts) -> str:
    """Return a field of the downward API. Errors: KeyError for a field that this kubelet does not support."""
    by_key = LABEL_FIELD.fullmatch(path)
    if by_key:
        return str((facts.metadata.get(by_key[1]) or {})[by_key[2]])
    return {
        "metadata.name": facts.pod_name,
        "metadata.namespace": facts.namespace,
        "metadata.uid": f"uid-of-{facts.pod_name}",
        "status.podIP": facts.pod_ip,
        "status.podIPs": facts.pod_ip,
        "status.hostIP": facts.node_ip,
        "spec.nodeName": facts.node_name,
        "spec.serviceAccountName": facts.service_account,
    }[path]


def _resource_value(reference: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    kind, name = reference["resource"].split(".", 1)
    quantity = str(container["resources"][kind][name])
    units = {"Mi": 2**20, "Gi": 2**30, "m": 0.001}
    for suffix, factor in units.items():
        if quantity.endswith(suffix):
            return str(int(-(-float(quantity.removesuffix(suffix)) * factor // 1)))
    return quantity
