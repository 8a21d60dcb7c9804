"""Calls are balanced over the addresses of a name, and old connections are replaced by new ones."""

import asyncio
import socket
from pathlib import Path

import pytest
from rpc.mutual_tls import a_pod, an_authority, answering, call, calling
from slipstream.config import RpcConfig


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as listening:
            listening.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="localhost has one address only")
def test_calls_are_distributed_over_the_addresses_of_a_name() -> None:
    async def run() -> list[bytes]:
        async with answering(RpcConfig(), address="127.0.0.1:0") as first:
            port = first.rsplit(":", 1)[1]
            async with (
                answering(RpcConfig(), address=f"[::1]:{port}"),
                calling(f"localhost:{port}", RpcConfig()) as channel,
            ):
                await call(channel)
                async with asyncio.timeout(5):
                    while len({(await call(channel)).split(b":")[0] for _ in range(4)}) < 2:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                return [(await call(channel)).split(b":")[0] for _ in range(10)]

    families = asyncio.run(run())
    assert families.count(b"ipv4") == families.count(b"ipv6") == 5


def test_a_connection_of_the_maximal_age_is_replaced_without_an_error(tmp_path: Path) -> None:
    async def run() -> int:
        authority = an_authority()
        served, client = a_pod(tmp_path / "s", authority, "learner"), a_pod(tmp_path, authority, "probe")
        async with (
            answering(served, connection_seconds=0.2) as address,
            calling(address, client) as channel,
        ):
            peers = set()
            for _ in range(100):
                peers.add((await call(channel)).split(b"\n")[0])
                await asyncio.sleep(0.01)
        return len(peers)

    assert asyncio.run(run()) >= 3
