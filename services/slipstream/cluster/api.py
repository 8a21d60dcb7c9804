"""The calls to the Kubernetes API server that `slipstream cluster` makes, with one-line errors."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from slipstream.cluster import connect, permissions
from slipstream.cluster.errors import ClusterError, ClusterUsageError, Missing, NotStarted, Unreachable

T = TypeVar("T")
Json = dict[str, Any]
CONNECT_SECONDS, READ_SECONDS = 5.0, 20.0
FOLLOW_SECONDS = 24 * 3600.0
"""Read deadline of a followed log, which may be silent for long."""
MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of object, as it is named in paths of the API."""

    group: str
    version: str
    plural: str


DEPLOYMENT = Kind(group="apps", version="v1", plural="deployments")
STATEFUL_SET = Kind(group="apps", version="v1", plural="statefulsets")
LEADER_WORKER_SET = Kind(group="leaderworkerset.x-k8s.io", version="v1", plural="leaderworkersets")
AUTOSCALER = Kind(group="autoscaling", version="v2", plural="horizontalpodautoscalers")
SCALED_OBJECT = Kind(group="keda.sh", version="v1alpha1", plural="scaledobjects")


class Api:
    """The objects of one namespace, as JSON. Every call has a deadline.

    Errors of every method: ClusterUsageError if the user may not make the call, Unreachable if the API server
    does not answer, Missing if the object does not exist, ClusterError for any other error of the API server.
    """

    def __init__(self, connection: connect.Connection) -> None:
        from kubernetes.client import ApiClient, CoreV1Api, CustomObjectsApi

        self.connection = connection
        self.namespace = connection.namespace
        client = ApiClient(connection.configuration)
        self._core, self._objects = CoreV1Api(client), CustomObjectsApi(client)

    def pods(self, selector: str) -> list[Json]:
        """Return the pods with these labels."""
        response = self._ask(
            "list",
            "pods",
            lambda: self._core.list_namespaced_pod(
                self.namespace, label_selector=selector, _preload_content=False, _request_timeout=_timeout()
            ),
        )
        return self._items("pods", _decoded(response.data))

    def objects(self, kind: Kind, selector: str = "") -> list[Json]:
        """Return the objects of a kind with these labels; none if the cluster does not have the kind."""
        try:
            answer = self._ask(
                "list",
                kind.plural,
                lambda: self._objects.list_namespaced_custom_object(
                    kind.group,
                    kind.version,
                    self.namespace,
                    kind.plural,
                    label_selector=selector,
                    _request_timeout=_timeout(),
                ),
            )
        except Missing:
            return []
        return self._items(kind.plural, answer)

    def objects_everywhere(self, kind: Kind, selector: str) -> list[Json]:
        """Return the objects of all namespaces; none if the user may not list other namespaces."""
        try:
            answer = self._ask(
                "list",
                kind.plural,
                lambda: self._objects.list_cluster_custom_object(
                    kind.group,
                    kind.version,
                    kind.plural,
                    label_selector=selector,
                    _request_timeout=_timeout(),
                ),
            )
        except ClusterUsageError:
            return []
        return self._items(kind.plural, answer)

    def scale(self, kind: Kind, name: str, replicas: int) -> None:
        """Set the number of replicas through the scale subresource."""
        self._ask(
            "patch",
            f"{kind.plural}/scale",
            lambda: self._objects.patch_namespaced_custom_object_scale(
                kind.group,
                kind.version,
                self.namespace,
                kind.plural,
                name,
                {"spec": {"replicas": replicas}},
                _content_type=MERGE_PATCH,
                _request_timeout=_timeout(),
            ),
        )

    def annotate(self, kind: Kind, name: str, annotations: Mapping[str, str | None]) -> None:
        """Set annotations in one request; None removes an annotation."""
        self._ask(
            "patch",
            kind.plural,
            lambda: self._objects.patch_namespaced_custom_object(
                kind.group,
                kind.version,
                self.namespace,
                kind.plural,
                name,
                {"metadata": {"annotations": dict(annotations)}},
                _content_type=MERGE_PATCH,
                _request_timeout=_timeout(),
            ),
        )

    def read_map(self, name: str) -> dict[str, str]:
        """Return the data of a ConfigMap."""
        response = self._ask(
            "get",
            "configmaps",
            lambda: self._core.read_namespaced_config_map(
                name, self.namespace, _preload_content=False, _request_timeout=_timeout()
            ),
        )
        answer = _decoded(response.data)
        return dict(answer.get("data") or {}) if isinstance(answer, dict) else {}

    def write_map(self, name: str, data: Mapping[str, str | None]) -> None:
        """Set keys of a ConfigMap; None removes a key."""
        self._ask(
            "patch",
            "configmaps",
            lambda: self._core.patch_namespaced_config_map(
                name,
                self.namespace,
                {"data": dict(data)},
                _preload_content=False,
                _content_type=MERGE_PATCH,
                _request_timeout=_timeout(),
            ),
        )

    def log(
        self, pod: str, container: str, *, follow: bool, since_seconds: int | None, tail: int | None
    ) -> Iterator[bytes]:
        """Return pieces of a container's log; each line starts with its time.

        Errors: also NotStarted, if the container has not started.
        """
        response = self._ask(
            "get",
            "pods/log",
            lambda: self._core.read_namespaced_pod_log(
                pod,
                self.namespace,
                container=container,
                follow=follow,
                since_seconds=since_seconds,
                tail_lines=tail,
                timestamps=True,
                _preload_content=False,
                _request_timeout=_timeout(FOLLOW_SECONDS if follow else READ_SECONDS),
            ),
        )
        stream: Iterator[bytes] = response.stream(amt=None, decode_content=False)
        return stream

    def _items(self, resource: str, answer: Any) -> list[Json]:
        """Return the objects of a list. Errors: ClusterUsageError for another answer, such as a login
        page."""
        items = answer.get("items") if isinstance(answer, dict) else None
        if not isinstance(items, list):
            raise ClusterUsageError(
                f"{self.connection.configuration.host} (context {self.connection.context}) answers, but not "
                f"with a list of {resource}: is it an API server of Kubernetes, or does a proxy answer?"
            )
        return items

    def _ask(self, verb: str, resource: str, call: Callable[[], T]) -> T:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return call()
        except ApiException as error:
            raise self._explain(verb, resource, error) from error
        except HTTPError as error:
            host = self.connection.configuration.host
            raise Unreachable(
                f"the API server {host} (context {self.connection.context}) does not answer: {_cause(error)}"
            ) from error

    def _explain(self, verb: str, resource: str, error: Any) -> ClusterError:
        message = _message(error)
        if error.status == 401:
            return ClusterUsageError(
                f"the API server does not accept the credentials of context {self.connection.context}: "
                f"log in again ({message})"
            )
        if error.status == 403:
            return ClusterUsageError(permissions.denied(verb, resource, self.namespace))
        if error.status == 404:
            return Missing(message)
        if error.status == 400 and resource == "pods/log":
            return NotStarted(message)
        return ClusterError(f"{verb} {resource}: the API server answered {error.status}: {message}")


def _decoded(body: bytes) -> Any:
    """Return the parsed JSON of a response; None if it is not JSON."""
    try:
        return json.loads(body)
    except ValueError:
        return None


def _timeout(read: float = READ_SECONDS) -> tuple[float, float]:
    return CONNECT_SECONDS, read


def _message(error: Any) -> str:
    """Return the message of the API server, or the reason of its status."""
    try:
        body = json.loads(error.body or error.data or "")
    except (TypeError, ValueError):
        body = {}
    text = body.get("message") if isinstance(body, dict) else None
    return " ".join(str(text or error.reason).split())


def _cause(error: Exception) -> str:
    """Return the innermost reason: urllib3 names its connection objects in the text of the outer errors."""
    while isinstance(inner := getattr(error, "reason", None) or error.__cause__, Exception):
        error = inner
    return " ".join((getattr(error, "strerror", None) or str(error)).split())
