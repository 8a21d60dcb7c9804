"""A gRPC proxy on loopback that delivers every request and loses a share of the responses."""

import asyncio
import random
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
from faults.fault import FaultFile

UNLIMITED = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
    ("grpc.http2.max_ping_strikes", 0),
]
FLEET = "/slipstream.v1.Fleet/"  # streams that last a whole run: no single response to lose


class GrpcProxy(grpc.GenericRpcHandler):
    """Forwards calls of every kind to `target` as bytes."""

    def __init__(self, target: str, faults: FaultFile, *, seed: int) -> None:
        self._channel = grpc.aio.insecure_channel(target, options=UNLIMITED)
        self._faults = faults
        self._random = random.Random(seed)

    async def listen(self) -> str:
        """Start; return host:port."""
        self._server = grpc.aio.server(options=UNLIMITED)
        self._server.add_generic_rpc_handlers((self,))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"127.0.0.1:{port}"

    async def close(self) -> None:
        """End every forwarded call."""
        await self._server.stop(grace=0)
        await self._channel.close()

    def service(self, handler_call_details: Any) -> Any:
        """Return a handler that also serves unary calls, which are streams of one message."""
        return grpc.stream_stream_rpc_method_handler(partial(self._pass, handler_call_details.method))

    async def _pass(
        self, method: str, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[bytes]:
        fault = self._faults.read()
        lost = not method.startswith(FLEET) and self._random.random() < fault.lost_answers
        call = self._channel.stream_stream(method)(
            requests,
            timeout=context.time_remaining(),
            metadata=tuple(context.invocation_metadata() or ()),
        )
        try:
            async for answer in call:
                if not lost:
                    yield answer
        except grpc.aio.AioRpcError as error:
            context.set_trailing_metadata(tuple(error.trailing_metadata() or ()))
            await context.abort(error.code(), error.details() or "")
        finally:
            call.cancel()
        if lost and fault.lost_silently:
            await asyncio.Event().wait()
        if lost:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost on its way")
