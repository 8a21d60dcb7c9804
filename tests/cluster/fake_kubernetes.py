"""A small Kubernetes API server on loopback, for the real client: HTTP and WebSocket.

It checks the token and the rights of each call, records the rights that were used, applies patches, ends
pods shortly after their workload was scaled down, scales by KEDA's annotation as KEDA does, streams logs, and
forwards ports to real TCP servers.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from cluster.port_forward import forward_port

Json = dict[str, Any]
Right = tuple[str, str, str]  # API group, resource, verb
TOKEN = "secret-token"
POD_ENDS_SECONDS = 0.02
KEDA_HOLDS = "autoscaling.keda.sh/paused-replicas"


@dataclass(kw_only=True)
class FakeKubernetes:
    """The state of the cluster, which tests may change at any time. `allowed` None allows every call."""

    objects: dict[str, list[Json]]
    maps: dict[str, dict[str, str]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    logs: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    logs_break_after: int | None = None
    allowed: set[Right] | None = None
    used: set[Right] = field(default_factory=set)
    patches: list[str] = field(default_factory=list)
    patches_before_crash: int | None = None
    stubborn: set[str] = field(default_factory=set)
    page: str | None = None  # answers every call, like a proxy before the API server
    url: str = ""

    def named(self, plural: str, name: str) -> Json:
        """Return an object by its plural kind and its name."""
        return next(item for item in self.objects[plural] if item["metadata"]["name"] == name)

    def replicas(self) -> dict[str, int]:
        """Return the number of replicas in the spec of every workload."""
        items = [*self.objects["deployments"], *self.objects["statefulsets"]]
        return {item["metadata"]["name"]: item["spec"]["replicas"] for item in items}

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._guard])
        core, apis = "/api/v1/namespaces/{namespace}", "/apis/{group}/{version}"
        named = apis + "/namespaces/{namespace}/{plural}/{name}"
        routes = application.router
        routes.add_get(core + "/pods", self._list)
        routes.add_get(core + "/pods/{name}/log", self._log)
        routes.add_get(core + "/pods/{name}/portforward", self._forward)
        routes.add_get(core + "/configmaps/{name}", self._read_map)
        routes.add_patch(core + "/configmaps/{name}", self._patch_map)
        routes.add_get(apis + "/namespaces/{namespace}/{plural}", self._list)
        routes.add_get(apis + "/{plural}", self._list)
        routes.add_patch(named, self._annotate)
        routes.add_patch(named + "/scale", self._scale)
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized")
        if self.page is not None:
            return web.Response(text=self.page, content_type="text/html")
        rights = _rights(request)
        everywhere = "namespace" not in request.match_info
        if self.allowed is not None and (everywhere or not rights <= self.allowed):
            return _status(403, "forbidden by the fake")
        if request.method == "PATCH":
            if self.patches_before_crash == 0:
                return _status(500, "etcd has no leader")
            self.patches_before_crash = self.patches_before_crash and self.patches_before_crash - 1
            if request.content_type != "application/merge-patch+json":
                return _status(415, f"the media type {request.content_type} is not supported")
            self.patches.append(request.path.split("/namespaces/")[1].partition("/")[2])
        self.used |= rights
        response: web.StreamResponse = await handler(request)
        return response

    async def _list(self, request: web.Request) -> web.Response:
        plural = request.match_info.get("plural", "pods")
        if plural not in self.objects:
            return _status(404, "the server could not find the requested resource")
        items = [
            item
            for item in self.objects[plural]
            if request.match_info.get("namespace", item["metadata"]["namespace"])
            == item["metadata"]["namespace"]
            and _matches(item, request.query.get("labelSelector", ""))
        ]
        return web.json_response({"kind": "List", "items": items})

    async def _scale(self, request: web.Request) -> web.Response:
        name, body = request.match_info["name"], await request.json()
        self._set_replicas(request.match_info["plural"], name, body["spec"]["replicas"])
        return web.json_response({"kind": "Scale", "spec": body["spec"]})

    def _set_replicas(self, plural: str, name: str, replicas: int) -> None:
        self.named(plural, name)["spec"]["replicas"] = replicas
        for pod in self.objects["pods"]:
            if replicas == 0 and pod["metadata"]["name"].startswith(f"{name}-"):
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                asyncio.get_running_loop().call_later(POD_ENDS_SECONDS, self._end, pod)

    def _end(self, pod: Json) -> None:
        if pod["metadata"]["name"] not in self.stubborn and pod in self.objects["pods"]:
            self.objects["pods"].remove(pod)

    async def _annotate(self, request: web.Request) -> web.Response:
        item = self.named(request.match_info["plural"], request.match_info["name"])
        annotations = item["metadata"].setdefault("annotations", {})
        _merge(annotations, (await request.json())["metadata"]["annotations"])
        if KEDA_HOLDS in annotations:
            self._set_replicas(
                "deployments", item["spec"]["scaleTargetRef"]["name"], int(annotations[KEDA_HOLDS])
            )
        return web.json_response(item)

    async def _read_map(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.maps:
            return _status(404, f'configmaps "{name}" not found')
        return web.json_response({"metadata": {"name": name}, "data": self.maps[name]})

    async def _patch_map(self, request: web.Request) -> web.Response:
        _merge(self.maps[request.match_info["name"]], (await request.json())["data"])
        return await self._read_map(request)

    async def _log(self, request: web.Request) -> web.StreamResponse:
        name, container = request.match_info["name"], request.query["container"]
        if container == "sidecar":
            return _status(400, "the sidecar's log is not wanted")
        if name not in self.logs:
            return _status(400, f'container "{container}" in pod "{name}" is waiting to start')
        lines, follow = self.logs[name], request.query.get("follow", "").lower() == "true"
        response = web.StreamResponse()
        await response.prepare(request)
        sent = max(0, len(lines) - int(request.query.get("tailLines", len(lines))))
        while True:
            for stamp, text in lines[sent:]:
                if self.logs_break_after == 0 and request.transport is not None:
                    self.logs_break_after = None
                    request.transport.abort()
                self.logs_break_after = self.logs_break_after and self.logs_break_after - 1
                await response.write(f"{stamp} {text}\n".encode())
            sent = len(lines)
            if not follow:
                return response
            await asyncio.sleep(0.01)

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        return await forward_port(request, self.ports.get(request.match_info["name"]))


def _rights(request: web.Request) -> set[Right]:
    where, last = request.match_info, request.path.rsplit("/", 1)[1]
    core = "group" not in where
    resource = request.path.split("/namespaces/")[-1].split("/")[1] if core else where["plural"]
    if last in ("scale", "log", "portforward"):
        resource = f"{resource}/{last}"
    verb = "patch" if request.method == "PATCH" else "get" if "name" in where else "list"
    group = where.get("group", "")
    rights = {(group, resource, verb)}
    # Since Kubernetes 1.35 the upgrade of a GET to a WebSocket needs `create` besides `get`.
    return rights | {(group, resource, "create")} if last == "portforward" else rights


def _matches(item: Json, selector: str) -> bool:
    labels = item["metadata"].get("labels", {})
    pairs = [pair.split("=") for pair in selector.split(",") if pair]
    return all(labels.get(key) == value for key, value in pairs)


def _merge(target: dict[str, str], patch: Json) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = value


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)


@contextlib.contextmanager
def serving(cluster: FakeKubernetes) -> Iterator[FakeKubernetes]:
    """Serve the cluster from its own thread, at `cluster.url`."""
    loop, started = asyncio.new_event_loop(), threading.Event()
    runner = web.AppRunner(cluster.application(), shutdown_timeout=0.1)

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        cluster.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started.set()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(start())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10)
    yield cluster
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def kubeconfig(cluster: FakeKubernetes, *, token: str = TOKEN, namespace: str = "team") -> str:
    """Return the text of a kubeconfig with the contexts `lab` (this cluster) and `nowhere`."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "lab", "cluster": {"server": cluster.url}},
                {"name": "nowhere", "cluster": {"server": "http://127.0.0.1:1"}},
            ],
            "users": [{"name": "me", "user": {"token": token}}],
            "contexts": [
                {"name": "lab", "context": {"cluster": "lab", "user": "me", "namespace": namespace}},
                {"name": "nowhere", "context": {"cluster": "nowhere", "user": "me"}},
            ],
            "current-context": "lab",
        }
    )
