"""Servers on IPv6 addresses; at the address [::] they accept IPv4 as well."""

import asyncio
import socket
from pathlib import Path
from urllib.request import urlopen

import httpx
import pytest
from pydantic import TypeAdapter, ValidationError
from rpc.mutual_tls import a_pod, an_authority, answering, call, calling
from slipstream.config import RpcConfig, RunConfig, apply_environment
from slipstream.config.addresses import split_address
from slipstream.config.sections.section import Address
from slipstream.rpc.security.failures import HandshakeFailure
from slipstream.rpc.security.handshake import find_failure
from slipstream.telemetry.health import Health
from slipstream.telemetry.listening import listen
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.telemetry.page import serve_page
from slipstream.verifier.http.listener import start_http

BOTH = ("127.0.0.1", "[::1]")


def has_ipv6() -> bool:
    try:
        listen("::1", 0).close()
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


@pytest.mark.parametrize("address", ["[::]:50051", "[::1]:0", "[fd00::10:1]:1", "0.0.0.0:1", "replay:50051"])
def test_an_address_is_a_name_or_an_ipv6_address_in_brackets(address: str) -> None:
    assert TypeAdapter(Address).validate_python(address) == address


@pytest.mark.parametrize("address", ["::1:50051", "[replay]:1", "[::1]", ":1", "[]:1"])
def test_an_ipv6_address_without_brackets_is_refused(address: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Address).validate_python(address)


def test_an_address_has_a_host_without_brackets_and_a_port() -> None:
    assert split_address("[fd00::1]:7") == ("fd00::1", 7)
    assert split_address("replay:7") == ("replay", 7)


@pytest.mark.parametrize(
    "host", ["::", "fd00::1", "1:2:3:4:5:6:7:8"]
)  # YAML would parse the last one as a number
def test_an_ipv6_address_of_the_environment_needs_no_quotes(host: str) -> None:
    environment = {"SLIPSTREAM_LEARNER_ADDRESS": f"[{host}]:50053", "SLIPSTREAM_WEIGHTS_HOST": host}
    config = apply_environment(RunConfig(), {**environment, "SLIPSTREAM_METRICS_PORT": "9464"})
    assert (config.learner.address, config.weights.host) == (f"[{host}]:50053", host)
    assert config.telemetry.port == 9464


def test_grpc_with_mutual_tls_works_at_an_ipv6_address(tmp_path: Path) -> None:
    authority = an_authority()
    server = a_pod(tmp_path / "learner", authority, "learner")
    client = a_pod(tmp_path / "console", authority, "console")

    async def ask() -> bytes:
        async with answering(server, address="[::1]:0") as address, calling(address, client) as channel:
            assert address.startswith("[::1]:")
            return await call(channel)

    assert asyncio.run(ask()).startswith(b"ipv6:")


def test_the_reason_of_a_refusal_is_reported_also_at_an_ipv6_address(tmp_path: Path) -> None:
    server = a_pod(tmp_path / "learner", an_authority(), "learner")
    client = a_pod(tmp_path / "console", an_authority(), "console")
    assert client.tls is not None

    async def ask() -> HandshakeFailure | None:
        async with answering(server, address="[::1]:0") as address:
            return await asyncio.to_thread(find_failure, address, client.tls)

    assert asyncio.run(ask())


def test_grpc_on_all_addresses_is_reached_over_ipv4_and_ipv6() -> None:
    config = RpcConfig(plaintext=True)

    async def ask() -> list[bytes]:
        async with answering(config, address="[::]:0") as address:
            port = address.rpartition(":")[2]
            responses = []
            for host in BOTH:
                async with calling(f"{host}:{port}", config) as channel:
                    responses.append(await call(channel))
            return responses

    assert len(asyncio.run(ask())) == len(BOTH)


@pytest.mark.parametrize("host", ["::", "[::]"])
def test_the_page_of_metrics_and_probes_is_reached_over_ipv4_and_ipv6(host: str) -> None:
    port = serve_page(Metrics(), Health(), host=host, port=0)
    for host_name in BOTH:
        with urlopen(f"http://{host_name}:{port}/livez", timeout=5) as response:
            assert response.status == 200


def test_http_scoring_on_all_addresses_is_reached_over_ipv4_and_ipv6() -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        raise AssertionError("no request with a path gets here")

    async def ask() -> list[int]:
        server = await start_http(
            app, "[::]:0", config=RpcConfig(plaintext=True), log=Log(pod="verifier"), grace=1
        )
        port = server.address.rpartition(":")[2]
        try:
            async with httpx.AsyncClient() as client:
                headers = {"origin": "http://example.org"}  # refused before it reaches the application
                requests = [client.get(f"http://{host}:{port}/", headers=headers) for host in BOTH]
                return [response.status_code for response in await asyncio.gather(*requests)]
        finally:
            await server.stop()

    assert asyncio.run(ask()) == [403, 403]


def test_a_server_on_an_ipv6_address_does_not_accept_ipv4() -> None:
    with listen("::1", 0) as one, pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", one.getsockname()[1]), 2)
