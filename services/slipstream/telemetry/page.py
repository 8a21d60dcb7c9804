"""The HTTP page of a pod: /metrics for Prometheus, and the three probes of its health."""

import socket
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from socketserver import TCPServer, ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from slipstream.telemetry.health import Health
from slipstream.telemetry.metrics import Metrics

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def serve_page(metrics: Metrics, health: Health, *, host: str, port: int) -> int:
    """Show the page on host:port (0 takes a free one), from threads of its own; returns the port.

    Errors: OSError when the port is in use, naming the key to change.
    """
    kind = _Server6 if ":" in host else _Server
    try:
        server = make_server(host, port, page(metrics, health), server_class=kind, handler_class=_Silent)
    except OSError as error:
        raise OSError(
            f"/metrics cannot listen on {host}:{port}: {error}; set another telemetry.port"
        ) from error
    Thread(target=server.serve_forever, name="page", daemon=True).start()
    return server.server_port


def page(metrics: Metrics, health: Health) -> Application:
    """The WSGI application: 200 or 503 for a probe, the exposition of the registry, 404 for the rest."""
    exposition: Application = make_wsgi_app(metrics.registry)
    probes: Mapping[str, Callable[[], bool]] = {
        "/startupz": lambda: health.started,
        "/livez": lambda: health.live,
        "/readyz": lambda: health.ready,
    }

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return exposition(environ, start_response)
        if path not in probes:
            return _say(start_response, HTTPStatus.NOT_FOUND, f"no {path}: /metrics, {', '.join(probes)}")
        if probes[path]():
            return _say(start_response, HTTPStatus.OK, "yes")
        return _say(start_response, HTTPStatus.SERVICE_UNAVAILABLE, "no")

    return answer


def _say(start_response: Callable[..., Any], status: HTTPStatus, text: str) -> Iterable[bytes]:
    start_response(f"{status.value} {status.phrase}", [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """As the base class, but without asking a name server, which a pod may not reach, for our name."""
        TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Silent(WSGIRequestHandler):
    timeout = 10  # a client that connects and is silent holds its thread no longer

    def log_message(self, format: str, *args: Any) -> None:
        """A probe every few seconds is not an event."""
