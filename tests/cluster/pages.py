"""The metrics pages of the pods of a run, from real registries, on ports of loopback."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cluster.fake_kubernetes import FakeKubernetes
from cluster.objects import PODS
from prometheus_client import generate_latest
from slipstream.records import Ledger, ReplayStats
from slipstream.replay.gauges import show
from slipstream.telemetry.metrics import Metrics


def learner(version: int = 12) -> Metrics:
    """Return a learner's metrics: nine tokens in ten are one version old, the others three or five."""
    metrics = Metrics()
    metrics.set("policy_version", version)
    metrics.observe_counts("staleness_versions", {1: 900, 3: 50, 5: 50})
    return metrics


def rollout(version: int) -> Metrics:
    metrics = Metrics()
    metrics.set("version_served", version)
    return metrics


def replay() -> Metrics:
    metrics = Metrics()
    ledger = Ledger(
        leased=107, inserted=100, returned=2, running=5, trained=90, filtered={"unvaried": 4}, buffered=6
    )
    show(ReplayStats(ledger=ledger, version=12, admission_free=3, kept=0), metrics)
    return metrics


@contextlib.contextmanager
def circle(cluster: FakeKubernetes) -> Iterator[None]:
    """Serve the page of every pod of a release; of three rollouts one is behind and one has no weights."""
    rollouts = (*PODS["rollout/steady"], *PODS["rollout/spot"])
    metrics = dict(zip(rollouts, map(rollout, (12, 10, -1)), strict=True))
    metrics |= {pod: Metrics() for pod in PODS["actor"]}
    for title, page in (("learner", learner()), ("verifier", Metrics()), ("replay", replay())):
        metrics[PODS[title][0]] = page
    with contextlib.ExitStack() as stack:
        cluster.ports = {
            pod: stack.enter_context(served(generate_latest(m.registry))) for pod, m in metrics.items()
        }
        yield


@contextlib.contextmanager
def served(body: bytes) -> Iterator[int]:
    """Serve `body` at /metrics, and yield the port."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *values: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def silent() -> Iterator[int]:
    """Yield a port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]
