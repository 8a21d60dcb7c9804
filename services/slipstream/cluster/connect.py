"""Connects to Kubernetes with a kubeconfig, or with the service account of the pod that the command runs
in."""

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
    """Address and credentials of an API server (`configuration`, a class of the client), and a namespace."""

    configuration: Any
    namespace: str
    context: str


def connect(
    *, kubeconfig: Path | None = None, context: str | None = None, namespace: str | None = None
) -> Connection:
    """Read the credentials, without sending a request.

    `kubeconfig`: None reads $KUBECONFIG, then ~/.kube/config, then the service account of the pod.
    Errors: ClusterUsageError if the extra `cluster`, the file or the context is missing.
    """
    try:
        from kubernetes.client import Configuration
    except ModuleNotFoundError as error:
        raise ClusterUsageError(
            "needs the extra `cluster`, which is not installed: pip install '.[cluster]' in a "
            "clone of Slipstream"
        ) from error
    configuration = Configuration()
    configuration.retries = False  # urllib3 would retry a refused connection, with a warning each time
    source = _kubeconfig(kubeconfig)
    if source is None and context is None:
        return _from_pod(configuration, namespace)
    return _from_file(configuration, source, context, namespace)


def _kubeconfig(file: Path | None) -> str | None:
    """Return the file, or a list of files in the form of $KUBECONFIG; None if there is no kubeconfig."""
    from kubernetes.config import KUBE_CONFIG_DEFAULT_LOCATION

    if file is not None:
        if not file.is_file():
            raise ClusterUsageError(f"{file}: no such kubeconfig file")
        return str(file)
    files = [path for path in KUBE_CONFIG_DEFAULT_LOCATION.split(":") if Path(path).expanduser().is_file()]
    return ":".join(files) or None


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
        with _logged_errors() as faults:
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
    names = ", ".join(sorted(candidate["name"] for candidate in contexts))
    raise ClusterUsageError(f"no context {name!r} in the kubeconfig; it has {names}")


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
def _logged_errors() -> Iterator[list[str]]:
    """Collect errors that the client logs inside the block: it does not raise those of a credential
    plugin."""
    messages: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(" ".join(record.getMessage().split()))

    root, collector = logging.getLogger(), Collector(logging.ERROR)
    root.addHandler(collector)
    try:
        yield messages
    finally:
        root.removeHandler(collector)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
