"""A real server on port 0: health, errors as statuses, and retried calls."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from slipstream.config import RpcConfig
from slipstream.rpc.channel import call_with_growing_deadline, call_with_retries, open_channel
from slipstream.rpc.errors import (
    InvalidRequest,
    MessageTooLarge,
    NotFound,
    OutOfMemory,
    SlipstreamError,
    Unreachable,
)
from slipstream.rpc.server import Server, start_server
from slipstream.v1 import learner_pb2 as pb
from slipstream.v1.learner_pb2_grpc import FleetServicer, FleetStub, add_FleetServicer_to_server

CONFIG = RpcConfig()
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Failing(FleetServicer):
    """Raises `error` in a unary call and in the middle of a stream."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def GetPolicy(self, request: Any, context: Any) -> pb.GetPolicyResponse:
        raise self._error

    async def Join(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.LearnerMessage]:
        yield pb.LearnerMessage(finish=pb.Finish(reason="first"))
        raise self._error


@asynccontextmanager
async def serving(servicer: FleetServicer) -> AsyncIterator[tuple[Server, grpc.aio.Channel]]:
    server = await start_server(
        "127.0.0.1:0", lambda s: add_FleetServicer_to_server(servicer, s), config=CONFIG
    )
    try:
        async with open_channel(server.address, CONFIG) as channel:
            yield server, channel
    finally:
        await server.stop(grace=0)


async def health(channel: grpc.aio.Channel) -> int:
    check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
    return int((await check).status)


def test_a_new_channel_does_not_share_the_backoff_of_an_old_one_to_the_same_address() -> None:
    """A server restarts on its port while another client of this process is still in its backoff."""

    async def run() -> None:
        first = await start_server("127.0.0.1:0", lambda _: None, config=CONFIG)
        async with open_channel(first.address, CONFIG) as old:
            await health(old)
            await first.stop(grace=0)
            for _ in range(3):  # the backoff grows with each attempt
                with pytest.raises(grpc.aio.AioRpcError):
                    await health(old)
                await asyncio.sleep(0.3)
            second = await start_server(first.address, lambda _: None, config=CONFIG)
            async with open_channel(first.address, CONFIG) as new:
                assert await health(new) == NOT_SERVING
            await second.stop(grace=0)

    asyncio.run(run())


def status_of(error: Exception, call: Callable[[Any], Awaitable[Any]]) -> tuple[grpc.StatusCode, str]:
    async def run() -> tuple[grpc.StatusCode, str]:
        async with serving(Failing(error)) as (_, channel):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(FleetStub(channel))
            return caught.value.code(), str(caught.value.details())

    return asyncio.run(run())


async def unary(stub: Any) -> None:
    await stub.GetPolicy(pb.GetPolicyRequest(), timeout=5)


async def stream(stub: Any) -> None:
    received = [message async for message in stub.Join(iter(()), timeout=5)]
    pytest.fail(f"ended without an error after {received}")


@pytest.mark.parametrize("call", [unary, stream])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("no"), grpc.StatusCode.INVALID_ARGUMENT),
        (NotFound("no"), grpc.StatusCode.NOT_FOUND),
        (OutOfMemory("no"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (Unreachable("no"), grpc.StatusCode.UNAVAILABLE),
        (SlipstreamError("no"), grpc.StatusCode.INTERNAL),
        (ValueError("no"), grpc.StatusCode.INVALID_ARGUMENT),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_of_a_servicer_becomes_a_status_with_its_text(
    error: Exception, code: grpc.StatusCode, call: Callable[[Any], Awaitable[Any]]
) -> None:
    assert status_of(error, call) == (code, "no")


def test_an_unexpected_error_becomes_the_status_unknown() -> None:
    assert status_of(ZeroDivisionError("bug"), unary)[0] is grpc.StatusCode.UNKNOWN


def test_health_is_serving_only_after_it_was_set_and_before_the_stop() -> None:
    async def run() -> list[int]:
        async with serving(FleetServicer()) as (server, channel):
            seen = [await health(channel)]
            for state in (True, False, True):
                await server.set_serving(state)
                seen.append(await health(channel))
            return seen

    assert asyncio.run(run()) == [NOT_SERVING, SERVING, NOT_SERVING, SERVING]


def test_a_message_above_the_limit_is_refused_and_one_below_it_arrives() -> None:
    class Echo(FleetServicer):
        async def Join(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.LearnerMessage]:
            async for message in request_iterator:
                yield pb.LearnerMessage(finish=pb.Finish(reason=str(len(message.leave.reason))))

    async def send(size: int) -> str:
        config = RpcConfig(max_message_mib=4)
        server = await start_server(
            "127.0.0.1:0", lambda s: add_FleetServicer_to_server(Echo(), s), config=config
        )
        async with open_channel(server.address, config) as channel:
            call = FleetStub(channel).Join(iter([pb.WorkerMessage(leave=pb.Leave(reason="x" * size))]))
            try:
                return str((await call.read()).finish.reason)
            finally:
                await server.stop(grace=0)

    assert asyncio.run(send(3 << 20)) == str(3 << 20)
    with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
        asyncio.run(send(5 << 20))


@pytest.mark.parametrize("received", [False, True], ids=["sent", "received"])
def test_a_message_above_the_limit_is_not_retried(received: bool) -> None:
    calls: list[int] = []

    class Large(FleetServicer):
        async def GetPolicy(self, request: Any, context: Any) -> pb.GetPolicyResponse:
            calls.append(1)
            return pb.GetPolicyResponse(members=[pb.FleetMember(worker_id="x" * (5 << 20))])

    async def run() -> None:
        small, large = RpcConfig(max_message_mib=4), RpcConfig(max_message_mib=8)
        server = await start_server(
            "127.0.0.1:0",
            lambda s: add_FleetServicer_to_server(Large(), s),
            config=large if received else small,
        )
        try:
            async with open_channel(server.address, small if received else large) as channel:
                stub = FleetStub(channel)
                await call_with_retries(
                    "ask", lambda: stub.GetPolicy(pb.GetPolicyRequest()), give_up_after=10
                )
        finally:
            await server.stop(grace=0)

    with pytest.raises(MessageTooLarge, match=r"ask: .*larger than max .*; raise rpc\.max_message_mib"):
        asyncio.run(run())
    assert len(calls) == 1


def test_the_error_of_a_missing_address_names_its_key() -> None:
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:0 cannot be called: set .*teacher\.address"):
        open_channel("127.0.0.1:0", CONFIG)


def test_a_port_in_use_is_an_os_error_that_names_address_and_key() -> None:
    async def run() -> None:
        async with serving(FleetServicer()) as (server, _):
            with pytest.raises(OSError, match=rf"cannot listen on {server.address}: .*Set another `address`"):
                await start_server(server.address, lambda _: None, config=CONFIG)

    asyncio.run(run())


class Flaky:
    """Fails with the given statuses in turn, then answers."""

    def __init__(self, *codes: grpc.StatusCode) -> None:
        self._codes = list(codes)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self._codes:
            raise error_of(self._codes.pop(0))
        return "answer"


def error_of(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, details=f"because {code.name}")


def test_a_call_is_retried_after_a_transient_status() -> None:
    flaky = Flaky(
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.CANCELLED,
    )
    assert asyncio.run(call_with_retries("ask", flaky, give_up_after=10)) == "answer"
    assert flaky.calls == 5


@pytest.mark.parametrize(
    "code",
    [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION],
)
def test_a_permanent_status_is_raised_at_once(code: grpc.StatusCode) -> None:
    flaky = Flaky(code)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        asyncio.run(call_with_retries("ask", flaky, give_up_after=10))
    assert (caught.value.code(), flaky.calls) == (code, 1)


def test_the_error_at_the_end_of_the_retries_names_the_call_and_the_reason() -> None:
    flaky = Flaky(*[grpc.StatusCode.UNAVAILABLE] * 1000)
    with pytest.raises(Unreachable, match=r"ask: gave up after 0.3 s: because UNAVAILABLE"):
        asyncio.run(asyncio.wait_for(call_with_retries("ask", flaky, give_up_after=0.3), 5))
    assert 2 <= flaky.calls <= 10


def test_the_deadline_of_a_call_doubles_after_every_two_attempts() -> None:
    deadlines: list[float] = []

    async def ask(seconds: float) -> str:
        deadlines.append(seconds)
        if len(deadlines) < 8:
            raise error_of(grpc.StatusCode.DEADLINE_EXCEEDED)
        return "answer"

    asking = call_with_growing_deadline("ask", ask, answer_seconds=2, longest_seconds=10, give_up_after=60)
    assert asyncio.run(asking) == "answer"
    assert deadlines == [2, 2, 4, 4, 8, 8, 10, 10]


def test_a_channel_reconnects_to_a_server_that_restarts() -> None:
    async def run() -> int:
        async with serving(FleetServicer()) as (first, _):
            address = first.address
        async with open_channel(address, CONFIG) as channel:
            asking = asyncio.create_task(
                call_with_retries("health", lambda: health(channel), give_up_after=20)
            )
            await asyncio.sleep(0)
            server = await start_server(address, lambda _: None, config=CONFIG)
            await server.set_serving(True)
            try:
                return await asking
            finally:
                await server.stop(grace=0)

    assert asyncio.run(run()) in (SERVING, NOT_SERVING)
