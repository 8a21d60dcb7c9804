"""The HTTP server of a pod: /metrics for Prometheus, and the three probes of Kubernetes."""

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
    """Serve HTTP on host:port (0 takes a free port) from threads of its own; return the port.

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
    """Return the WSGI application: 200 or 503 for a probe, the metrics, and 404 for other paths."""
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
    """A server on a listening socket. WSGIServer would look up its own name, and a pod may have no DNS."""

    daemon_threads = True

    def __init__(self, listening: socket, application: Application) -> None:
        super().__init__(listening.getsockname(), _Silent, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_name, self.server_port = listening.getsockname()[:2]
        self.setup_environ()
        self.set_app(application)


class _Silent(WSGIRequestHandler):
    timeout = 10  # closes a connection without a request, which would hold its thread

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: probes come every few seconds."""
