"""The few calls to the API server that the commands are made of, with their errors said in one line."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from slipstream.cluster.connect import Connection
from slipstream.cluster.errors import ClusterError, ClusterUsageError, Missing, NotStarted, Unreachable
from slipstream.cluster.permissions import denied

T = TypeVar("T")
Json = dict[str, Any]
CONNECT_SECONDS, READ_SECONDS = 5.0, 20.0
FOLLOW_SECONDS = 24 * 3600.0  # a log that is followed may be silent for as long
MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of object, as the API's paths name it."""

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

    Errors of every method: ClusterUsageError without the right to make the call, Unreachable when the API
    server does not answer, Missing for an object that is not there, ClusterError for anything else it says.
    """

    def __init__(self, connection: Connection) -> None:
        from kubernetes.client import ApiClient, CoreV1Api, CustomObjectsApi

        self.connection = connection
        self.namespace = connection.namespace
        client = ApiClient(connection.configuration)
        self._core, self._objects = CoreV1Api(client), CustomObjectsApi(client)

    def pods(self, selector: str) -> list[Json]:
        """The pods with these labels."""
        response = self._ask(
            "list",
            "pods",
            lambda: self._core.list_namespaced_pod(
                self.namespace, label_selector=selector, _preload_content=False, _request_timeout=_timeout()
            ),
        )
        return self._items("pods", _decoded(response.data))

    def objects(self, kind: Kind, selector: str = "") -> list[Json]:
        """The objects of a kind with these labels; none where the cluster does not know the kind."""
        try:
            found = self._ask(
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
        return self._items(kind.plural, found)

    def objects_everywhere(self, kind: Kind, selector: str) -> list[Json]:
        """The objects of all namespaces; none for who may not look so far."""
        try:
            found = self._ask(
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
        return self._items(kind.plural, found)

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
        """Set annotations, all or none of them; None removes one."""
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
        """The data of a ConfigMap."""
        response = self._ask(
            "get",
            "configmaps",
            lambda: self._core.read_namespaced_config_map(
                name, self.namespace, _preload_content=False, _request_timeout=_timeout()
            ),
        )
        found = _decoded(response.data)
        return dict(found.get("data") or {}) if isinstance(found, dict) else {}

    def write_map(self, name: str, data: Mapping[str, str | None]) -> None:
        """Set keys of a ConfigMap; None removes one."""
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
        """Pieces of a container's log, each line with its time in front. Errors: NotStarted, too."""
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

    def _items(self, resource: str, found: Any) -> list[Json]:
        """The objects of a list. Errors: ClusterUsageError for what is none, such as a login page."""
        items = found.get("items") if isinstance(found, dict) else None
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
            return ClusterUsageError(denied(verb, resource, self.namespace))
        if error.status == 404:
            return Missing(message)
        if error.status == 400 and resource == "pods/log":
            return NotStarted(message)
        return ClusterError(f"{verb} {resource}: the API server answered {error.status}: {message}")


def _decoded(body: bytes) -> Any:
    """The JSON of a body; None for one that is none."""
    try:
        return json.loads(body)
    except ValueError:
        return None


def _timeout(read: float = READ_SECONDS) -> tuple[float, float]:
    return CONNECT_SECONDS, read


def _message(error: Any) -> str:
    """What the API server says in words, or the reason of its status."""
    try:
        body = json.loads(error.body or error.data or "")
    except (TypeError, ValueError):
        body = {}
    text = body.get("message") if isinstance(body, dict) else None
    return " ".join(str(text or error.reason).split())


def _cause(error: Exception) -> str:
    """The innermost reason, without the objects that the client prints around it."""
    text = str(getattr(error, "reason", None) or error)
    return " ".join(text.rsplit("object at", 1)[-1].split(": ", 1)[-1].split())
