"""An idle connection is kept while the peer answers keepalive probes, and closed seconds after it stops."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from faults.fault import Fault, FaultFile
from faults.tcp_proxy import TcpProxy
from slipstream.config import RpcConfig
from slipstream.rpc.channel import open_channel, with_idle_timeout
from slipstream.rpc.server import start_server
from slipstream.v1 import learner_pb2 as pb
from slipstream.v1.learner_pb2_grpc import FleetServicer, FleetStub, add_FleetServicer_to_server

CONFIG = RpcConfig()


class Silent(FleetServicer):
    """A stream that sends one message and then nothing; `ended` is set at its end."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def Join(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.LearnerMessage]:
        try:
            yield pb.LearnerMessage(finish=pb.Finish(reason="first"))
            await asyncio.Event().wait()
        finally:
            self.ended.set()


async def silent_stream(faults: FaultFile, *, idle_seconds: float, then: Fault) -> tuple[float, Silent]:
    """Return the seconds from the fault to the error of a client whose stream was idle."""
    servicer = Silent()
    server = await start_server(
        "127.0.0.1:0", lambda s: add_FleetServicer_to_server(servicer, s), config=CONFIG
    )
    proxy = TcpProxy(server.address, faults)
    try:
        async with open_channel(await proxy.listen(), CONFIG) as channel:
            call = FleetStub(channel).Join()
            assert (await call.read()).finish.reason == "first"
            reading = asyncio.ensure_future(call.read())
            await asyncio.wait([reading], timeout=idle_seconds)
            assert not reading.done(), "an idle stream has ended"
            faults.write(then)
            began = time.monotonic()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(reading, 20)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            lasted = time.monotonic() - began
            await asyncio.wait_for(servicer.ended.wait(), 20)
            return lasted, servicer
    finally:
        await server.stop(grace=0)


def test_an_idle_stream_is_kept_and_both_ends_notice_a_dead_connection_in_seconds(
    tmp_path: Path,
) -> None:
    faults = FaultFile(tmp_path / "path.json")
    lasted, _ = asyncio.run(silent_stream(faults, idle_seconds=6, then=Fault(partition=True)))
    assert lasted < 10


async def read_silent_stream(*, silence_seconds: float) -> tuple[list[str], grpc.StatusCode, float]:
    """Return the messages of a stream that falls silent, its final status, and the seconds until then."""
    servicer = Silent()
    read: list[str] = []
    server = await start_server(
        "127.0.0.1:0", lambda s: add_FleetServicer_to_server(servicer, s), config=CONFIG
    )
    try:
        async with open_channel(server.address, CONFIG) as channel:
            began = time.monotonic()
            messages = with_idle_timeout(FleetStub(channel).Join(), silence_seconds=silence_seconds)
            read.append((await anext(messages)).finish.reason)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await anext(messages)
            lasted = time.monotonic() - began
            await asyncio.wait_for(servicer.ended.wait(), 5)
            return read, caught.value.code(), lasted
    finally:
        await server.stop(grace=0)


def test_a_stream_that_falls_silent_ends_with_its_deadline_on_both_sides() -> None:
    read, code, lasted = asyncio.run(read_silent_stream(silence_seconds=0.5))
    assert read == ["first"]
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert 0.5 <= lasted < 4
