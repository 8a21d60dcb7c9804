"""A TCP proxy on loopback that delays, cuts, half-opens or partitions the connections of one path.

client ─▶ Connection.client ──▶ (delay) ─▶ Connection.server ─▶ server, and back the same way
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from faults.fault import NO_FAULT, Fault, FaultFile

CHUNK_BYTES = 64 * 1024
LOOK_SECONDS = 0.02
MOST_CHUNKS = 256
ANSWER_BYTES = 60
"""A larger chunk has a response, and not only frames of the protocol."""
ANSWER_PAUSE_SECONDS = 0.02
"""Chunks with a shorter pause between them belong to one response."""


class TcpProxy:
    """Forwards to `target` (host:port). Invariant: without a fault every byte arrives, in order.

    The fault is that of a file, where one is given, and else `fault`. `seed` draws the answers that are lost;
    `lost` counts them. `connections` are in the order of their opening, those that have ended included.
    """

    def __init__(
        self, target: str, faults: FaultFile | None = None, *, fault: Fault = NO_FAULT, seed: int = 1
    ) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._faults = faults
        self._half_opened = 0
        self._random = random.Random(seed)
        self.fault = faults.read() if faults else fault
        self.connections: list[Connection] = []
        self.address = ""
        self.lost = 0

    async def listen(self) -> str:
        """Start; return host:port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._watching = asyncio.create_task(self._watch(self._faults)) if self._faults else None
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self.address

    def close(self) -> None:
        """End every connection, and accept no more."""
        self._server.close()
        if self._watching is not None:
            self._watching.cancel()
        for connection in self.connections:
            connection.reset()

    def may_half_open(self, answer_bytes: int) -> bool:
        """Return whether a connection becomes half-open after these bytes; count those that do."""
        after = self.fault.half_open_after_bytes
        if not after or answer_bytes < after or self._half_opened >= self.fault.half_open_times:
            return False
        self._half_opened += 1
        return True

    def loses(self, share: float) -> bool:
        """Draw whether a response is lost, with this probability; count the lost ones."""
        lost = self._random.random() < share
        self.lost += lost
        return lost

    async def _watch(self, faults: FaultFile) -> None:
        while True:
            fault = faults.read()
            if fault.cuts > self.fault.cuts:
                for connection in self.connections:
                    connection.reset()
            if fault.half_open_after_bytes != self.fault.half_open_after_bytes:
                self._half_opened = 0
                for connection in self.connections:
                    connection.answered_bytes = 0
            self.fault = fault
            await asyncio.sleep(LOOK_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        connection = Connection(self, client=writer, server=to_server)
        self.connections.append(connection)
        with suppress(asyncio.CancelledError):  # at the end of the test
            await connection.forward(requests=reader, answers=from_server)


class Connection:
    """The connection of a client, and the connection to the server that belongs to it."""

    def __init__(
        self, proxy: TcpProxy, *, client: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._requests_stopped = False
        self._answers_stopped = False
        self._ways: tuple[asyncio.Task[None], ...] = ()
        self.client = client
        self.server = server
        self.answered_bytes = 0

    def half_open(self, *, requests: bool = True, answers: bool = True) -> None:
        """Forward nothing more in these directions, and no end in either; both sides stay connected."""
        self._requests_stopped |= requests
        self._answers_stopped |= answers

    def reset(self) -> None:
        """End both sides with a TCP reset."""
        for way in self._ways:
            way.cancel()
        for writer in (self.client, self.server):
            writer.transport.abort()

    async def forward(self, *, requests: asyncio.StreamReader, answers: asyncio.StreamReader) -> None:
        """Forward until both directions have ended, or one has failed."""
        self._ways = (
            asyncio.create_task(self._forward(requests, self.server, answers=False)),
            asyncio.create_task(self._forward(answers, self.client, answers=True)),
        )
        try:
            with suppress(OSError):
                await asyncio.gather(*self._ways)
        finally:
            self.reset()

    def _stopped(self, *, answers: bool) -> bool:
        return self._answers_stopped if answers else self._requests_stopped

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        """Forward one direction: write each chunk `delay_seconds` after it was read."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MOST_CHUNKS)
        sending = asyncio.create_task(self._send(queue, writer, answers=answers))
        loop, last = asyncio.get_running_loop(), 0.0
        try:
            while data := await reader.read(CHUNK_BYTES):
                begins, last = loop.time() - last > ANSWER_PAUSE_SECONDS, loop.time()
                if answers:
                    self._answered(len(data), begins=begins and len(data) > ANSWER_BYTES)
                if not self._stopped(answers=answers) and not self._proxy.fault.partition:
                    await queue.put((loop.time() + self._proxy.fault.delay_seconds, data))
            await queue.put((loop.time() + self._proxy.fault.delay_seconds, b""))
            await sending
        finally:
            sending.cancel()

    def _answered(self, size: int, *, begins: bool) -> None:
        """Count the bytes of the server, and apply the fault. Errors: ConnectionResetError."""
        fault = self._proxy.fault
        self.answered_bytes += size
        if self._proxy.may_half_open(self.answered_bytes):
            self.half_open()
        if begins and self._proxy.loses(fault.cut_answers):
            raise ConnectionResetError
        if begins and not self._answers_stopped and self._proxy.loses(fault.swallowed_answers):
            self.half_open(requests=False)

    async def _send(
        self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await queue.get()
            if (early := due - loop.time()) > 0:
                await asyncio.sleep(early)
            ends_half_open = not data and (self._requests_stopped or self._answers_stopped)
            if ends_half_open or self._stopped(answers=answers):
                await asyncio.Event().wait()
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def tcp_proxy(target: str, *, fault: Fault = NO_FAULT, seed: int = 1) -> AsyncIterator[TcpProxy]:
    """Run a proxy to host:port until the context ends."""
    proxy = TcpProxy(target, fault=fault, seed=seed)
    await proxy.listen()
    try:
        yield proxy
    finally:
        proxy.close()
