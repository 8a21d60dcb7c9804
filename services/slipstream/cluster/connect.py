"""From a kubeconfig, or the service account of the pod that this runs in, to a connection."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.cluster.errors import ClusterUsageError

OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
IN_CLUSTER = "(in cluster)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Where the API server is and who asks (`configuration` is the client's own), and for which namespace."""

    configuration: Any
    namespace: str
    context: str


def connect(
    *, kubeconfig: Path | None = None, context: str | None = None, namespace: str | None = None
) -> Connection:
    """Read the credentials; nothing is sent yet. By default $KUBECONFIG or ~/.kube/config, else the pod's.

    Errors: ClusterUsageError when the extra, the file or the context is missing.
    """
    try:
        from kubernetes.client import Configuration
    except ModuleNotFoundError as error:
        raise ClusterUsageError(
            "needs the extra `cluster`, which is not installed: pip install '.[cluster]' in a "
            "clone of Slipstream"
        ) from error
    configuration = Configuration()
    configuration.retries = False  # urllib3 would repeat a refused connection, with a warning each time
    source = _kubeconfig(kubeconfig)
    if source is None and context is None:
        return _from_pod(configuration, namespace)
    return _from_file(configuration, source, context, namespace)


def _kubeconfig(given: Path | None) -> str | None:
    """The file, or the list of files as $KUBECONFIG writes it; None when there is none."""
    from kubernetes.config import KUBE_CONFIG_DEFAULT_LOCATION

    if given is not None:
        if not given.is_file():
            raise ClusterUsageError(f"{given}: no such kubeconfig file")
        return str(given)
    found = [path for path in KUBE_CONFIG_DEFAULT_LOCATION.split(":") if Path(path).expanduser().is_file()]
    return ":".join(found) or None


def _from_file(
    configuration: Any, source: str | None, context: str | None, namespace: str | None
) -> Connection:
    from kubernetes.config import ConfigException, list_kube_config_contexts, load_kube_config
    from yaml import YAMLError

    if source is None:
        raise ClusterUsageError(f"--context {context}: no kubeconfig was found; name it by --kubeconfig FILE")
    try:
        contexts, current = list_kube_config_contexts(config_file=source)
        chosen = _choose(contexts, current, context)
        with _told() as faults:
            load_kube_config(config_file=source, context=chosen["name"], client_configuration=configuration)
    except (ConfigException, YAMLError, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        raise ClusterUsageError(f"{source}: not a usable kubeconfig: {_one_line(error)}") from error
    if faults:
        raise ClusterUsageError(f"{source}: no credentials for context {chosen['name']}: {'; '.join(faults)}")
    if not configuration.host.startswith(("https://", "http://")):
        raise ClusterUsageError(
            f"{source}: the server of context {chosen['name']} is {configuration.host!r}, and no https:// "
            "address"
        )
    own = chosen["context"].get("namespace")
    return Connection(
        configuration=configuration, namespace=namespace or own or "default", context=chosen["name"]
    )


def _choose(contexts: list[dict[str, Any]], current: dict[str, Any], name: str | None) -> dict[str, Any]:
    if name is None:
        return current
    for candidate in contexts:
        if candidate["name"] == name:
            return candidate
    known = ", ".join(sorted(candidate["name"] for candidate in contexts))
    raise ClusterUsageError(f"no context {name!r} in the kubeconfig; it has {known}")


def _from_pod(configuration: Any, namespace: str | None) -> Connection:
    from kubernetes.config import ConfigException, load_incluster_config

    try:
        load_incluster_config(client_configuration=configuration)
    except ConfigException as error:
        raise ClusterUsageError(
            "no kubeconfig was found ($KUBECONFIG, ~/.kube/config), and this is no pod that has a token; "
            "name one by --kubeconfig FILE"
        ) from error
    own = OWN_NAMESPACE.read_text(encoding="utf-8").strip() if OWN_NAMESPACE.is_file() else "default"
    return Connection(configuration=configuration, namespace=namespace or own, context=IN_CLUSTER)


@contextmanager
def _told() -> Iterator[list[str]]:
    """Why a credential plugin gave nothing, which the client logs and does not raise; a line each."""
    found: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(" ".join(record.getMessage().split()))

    root, keep = logging.getLogger(), Keep(logging.ERROR)
    root.addHandler(keep)
    try:
        yield found
    finally:
        root.removeHandler(keep)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
