"""The HTTP page of a pod: /metrics for Prometheus, and the three probes of its health."""

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from socket import socket
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from slipstream.telemetry.health import Health
from slipstream.telemetry.listening import listen
from slipstream.telemetry.metrics import Metrics

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def serve_page(metrics: Metrics, health: Health, *, host: str, port: int) -> int:
    """Show the page on host:port (0 takes a free one), from threads of its own; returns the port.

    Errors: OSError when the port is in use, naming the key to change.
    """
    try:
        listening = listen(host, port)
    except OSError as error:
        raise OSError(
            f"/metrics cannot listen on {host}:{port}: {error}; set another telemetry.port"
        ) from error
    server = _Server(listening, page(metrics, health))
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
    """On a socket that listens already; the base class would ask a name server, which a pod may not reach."""

    daemon_threads = True

    def __init__(self, listening: socket, application: Application) -> None:
        super().__init__(listening.getsockname(), _Silent, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_name, self.server_port = listening.getsockname()[:2]
        self.setup_environ()
        self.set_app(application)


class _Silent(WSGIRequestHandler):
    timeout = 10  # a client that connects and is silent holds its thread no longer

    def log_message(self, format: str, *args: Any) -> None:
        """A probe every few seconds is not an event."""
