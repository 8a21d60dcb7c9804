"""The rollout's end of one stream to the learner, which answers pings whatever else the rollout does."""

import asyncio
from contextlib import suppress
from typing import Any

import grpc

from slipstream.v1 import learner_pb2 as pb

Message = pb.LearnerMessage | None


class FleetStream:
    """The messages of one stream. One message of the learner may be read ahead of time."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._writing = asyncio.Lock()
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._receiving = asyncio.create_task(self._receive())
        self._reading: asyncio.Task[Message] | None = None

    def reading(self) -> asyncio.Task[Message]:
        """Return the task that reads the next message, which `take` returns."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._messages.get())
        return self._reading

    async def take(self) -> Message:
        """Return the next message other than a ping; None at the end of the stream. Errors: AioRpcError."""
        message = await asyncio.shield(self.reading())
        self._reading = None
        if message is None:
            await self._receiving  # raises why the stream ended
        return message

    async def write(self, message: pb.WorkerMessage) -> None:
        """Send a message, unless the call has ended. Errors: AioRpcError; InvalidStateError after `leave`."""
        async with self._writing:
            if not self._call.done():
                await self._call.write(message)

    async def leave(self, reason: str) -> None:
        """Send the last message. Errors: those of `write`."""
        async with self._writing:
            await self._call.write(pb.WorkerMessage(leave=pb.Leave(reason=reason)))
            await self._call.done_writing()

    async def close(self) -> None:
        """End the call."""
        self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()
        self._receiving.cancel()
        await asyncio.gather(self._receiving, return_exceptions=True)

    async def _receive(self) -> None:
        """Queue the learner's messages, but for pings, until the stream ends. Errors: AioRpcError."""
        try:
            while isinstance(message := await self._call.read(), pb.LearnerMessage):
                if message.WhichOneof("message") == "ping":
                    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the next read ends this
                        await self.write(pb.WorkerMessage(pong=pb.Pong(number=message.ping.number)))
                else:
                    self._messages.put_nowait(message)
        finally:
            self._messages.put_nowait(None)
