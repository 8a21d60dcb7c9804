"""A TCP proxy on loopback that delays, cuts, half-opens or partitions the connections of one path.

client ─▶ _Connection.upstream ──▶ (delay) ─▶ server
       ◀─ _Connection.downstream ◀─ (delay) ◀─
"""

import asyncio
from contextlib import suppress

from faults.fault import Fault, FaultFile

CHUNK_BYTES = 64 * 1024
LOOK_SECONDS = 0.02
MOST_CHUNKS = 256


class TcpProxy:
    """Forwards to `target` (host:port). Invariant: without a fault every byte arrives, in order."""

    def __init__(self, target: str, faults: FaultFile) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._faults = faults
        self._connections: set[_Connection] = set()
        self._fault = faults.read()
        self._half_opened = 0

    async def listen(self) -> str:
        """Start; returns host:port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = server
        self._watching = asyncio.create_task(self._watch())
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    @property
    def fault(self) -> Fault:
        """The fault in force."""
        return self._fault

    def may_half_open(self, answer_bytes: int) -> bool:
        """Whether a connection with so many bytes of answers goes half-open now; counts those that do."""
        after = self._fault.half_open_after_bytes
        if not after or answer_bytes < after or self._half_opened >= self._fault.half_open_times:
            return False
        self._half_opened += 1
        return True

    async def _watch(self) -> None:
        while True:
            fault = self._faults.read()
            if fault.cuts > self._fault.cuts:
                for connection in self._connections:
                    connection.reset()
            if fault.half_open_after_bytes != self._fault.half_open_after_bytes:
                self._half_opened = 0
                for connection in self._connections:
                    connection.answer_bytes = 0
            self._fault = fault
            await asyncio.sleep(LOOK_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(self, (reader, writer), (from_server, to_server))
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)


class _Connection:
    """One client's connection and the one to the server that belongs to it."""

    def __init__(
        self,
        proxy: TcpProxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._dead = False
        self.answer_bytes = 0

    def reset(self) -> None:
        """End both sides with a TCP reset."""
        for _, writer in (self._client, self._server):
            writer.transport.abort()

    async def run(self) -> None:
        """Forward until both directions have ended."""
        up = self._forward(self._client[0], self._server[1], answers=False)
        down = self._forward(self._server[0], self._client[1], answers=True)
        with suppress(OSError):
            await asyncio.gather(up, down)
        self.reset()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MOST_CHUNKS)
        sending = asyncio.create_task(self._send(queue, writer))
        loop = asyncio.get_running_loop()
        try:
            while data := await reader.read(CHUNK_BYTES):
                if answers:
                    self.answer_bytes += len(data)
                    self._dead = self._dead or self._proxy.may_half_open(self.answer_bytes)
                if not self._dead and not self._proxy.fault.partition:
                    await queue.put((loop.time() + self._proxy.fault.delay_seconds, data))
            await queue.put((loop.time() + self._proxy.fault.delay_seconds, b""))
            await sending
        finally:
            sending.cancel()

    async def _send(self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await queue.get()
            if (early := due - loop.time()) > 0:
                await asyncio.sleep(early)
            if self._dead:
                await asyncio.Event().wait()  # a half-open connection does not pass on its end either
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
