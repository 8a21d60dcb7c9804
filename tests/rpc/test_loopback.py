"""Plaintext is allowed only on loopback, unless rpc.plaintext is set."""

import asyncio

import pytest
from rpc.mutual_tls import WrittenLog, answering, call, calling
from slipstream.config import ConfigError, RpcConfig
from slipstream.config.addresses import is_loopback
from slipstream.rpc.channel import open_channel
from slipstream.rpc.security.loopback import WARNING, warn_of_plaintext
from slipstream.rpc.server import start_server

NEAR = ("127.0.0.1:1", "127.8.9.10:1", "localhost:1", "[::1]:1", "unix:/tmp/socket", "unix:///tmp/socket")
FAR = (
    "0.0.0.0:1",
    "[::]:1",
    "10.1.2.3:1",
    "replay:1",
    "localhost.example:1",
    "127.0.0.1.nip.io:1",
    "128.0.0.1:1",
)


@pytest.mark.parametrize("address", NEAR)
def test_loopback_needs_no_tls(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize("address", FAR)
def test_another_address_without_tls_is_refused_by_client_and_server(address: str) -> None:
    says = r"is beyond loopback.*set rpc.tls .*or rpc.plaintext to true"

    async def both() -> None:
        with pytest.raises(ConfigError, match=says):
            open_channel(address, RpcConfig())
        with pytest.raises(ConfigError, match=says):
            await start_server(address, lambda _: None, config=RpcConfig())

    asyncio.run(both())


def test_the_flag_allows_plaintext_and_logs_a_warning() -> None:
    config, written = RpcConfig(plaintext=True), WrittenLog()

    async def both() -> None:
        server = await start_server("0.0.0.0:0", lambda _: None, config=config)
        await open_channel("replay:1", config).close(None)
        await server.stop(grace=0)

    asyncio.run(both())
    warn_of_plaintext(config, written.log)
    assert len(written.lines) == 1
    assert f"warning it: {WARNING}" in written.lines[0]


def test_without_the_flag_nothing_is_logged() -> None:
    written = WrittenLog()
    warn_of_plaintext(RpcConfig(), written.log)
    assert written.lines == []


def test_a_proxy_of_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

    async def ask() -> bytes:
        async with answering(RpcConfig()) as address, calling(address, RpcConfig()) as channel:
            return await call(channel)

    assert asyncio.run(ask())
