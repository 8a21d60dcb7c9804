"""A pod answers Prometheus and its probes over plain HTTP."""

from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from slipstream.telemetry.health import STALL_SECONDS, Health
from slipstream.telemetry.metrics import Metrics
from slipstream.telemetry.page import serve_page


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def serve(health: Health, metrics: Metrics | None = None) -> int:
    return serve_page(metrics or Metrics(), health, host="127.0.0.1", port=0)


def test_the_page_is_served_over_http_and_a_port_in_use_is_named() -> None:
    metrics = Metrics()
    metrics.set("policy_version", 7)
    port = serve(Health(), metrics)
    status, shown = ask(port, "/metrics")
    assert status == 200
    assert "# HELP slipstream_policy_version Policy version" in shown
    assert "# TYPE slipstream_policy_version gauge\nslipstream_policy_version 7.0\n" in shown
    with pytest.raises(OSError, match=rf"cannot listen on 127.0.0.1:{port}.*telemetry.port"):
        serve_page(Metrics(), Health(), host="127.0.0.1", port=port)


def test_the_page_is_served_on_ipv6_too() -> None:
    port = serve_page(Metrics(), Health(), host="::1", port=0)
    with urlopen(f"http://[::1]:{port}/livez", timeout=5) as response:
        assert response.status == 200


def test_before_the_start_a_pod_is_live_but_neither_started_nor_ready() -> None:
    port = serve(Health())
    assert [ask(port, path)[0] for path in ("/livez", "/startupz", "/readyz")] == [200, 503, 503]


def test_readiness_follows_what_the_pod_needs_and_ends_with_the_stop() -> None:
    able, stopping = [False], [False]
    health = Health(stopping=lambda: stopping[0])
    health.ready_while(lambda: able[0])
    health.start()
    port = serve(health)
    assert [ask(port, path)[0] for path in ("/startupz", "/readyz")] == [200, 503]
    able[0] = True
    assert ask(port, "/readyz") == (200, "yes\n")
    stopping[0] = True
    assert ask(port, "/readyz") == (503, "no\n")
    assert ask(port, "/livez")[0] == 200


def test_a_blocked_event_loop_is_not_live_and_a_loading_pod_is() -> None:
    now = [0.0]
    health = Health(clock=lambda: now[0])
    now[0] = 10 * STALL_SECONDS
    assert health.live
    health.start()
    now[0] += STALL_SECONDS - 1
    assert health.live
    now[0] += 1
    assert not health.live
    health.beat()
    assert health.live


def test_an_unknown_path_is_404_with_the_list_of_paths() -> None:
    status, body = ask(serve(Health()), "/health")
    assert (status, body) == (404, "no /health: /metrics, /startupz, /livez, /readyz\n")
