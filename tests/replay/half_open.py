"""A TCP proxy on loopback whose connections can go half-open: nothing gets through, and nobody is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

CHUNK_BYTES = 65536


@dataclass(slots=True, kw_only=True)
class Connection:
    """One client's connection, and the proxy's own to the server. Neither end hears of the other's end."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    requests_stopped: asyncio.Event = field(default_factory=asyncio.Event)
    answers_stopped: asyncio.Event = field(default_factory=asyncio.Event)
    answered_bytes: int = 0

    def half_open(self, *, requests: bool, answers: bool) -> None:
        """Forward nothing more in these directions; both ends stay connected."""
        if requests:
            self.requests_stopped.set()
        if answers:
            self.answers_stopped.set()


@dataclass(slots=True, kw_only=True)
class Proxy:
    """Forwards every connection to one server."""

    address: str = ""
    connections: list[Connection] = field(default_factory=list)


@asynccontextmanager
async def proxy_to(address: str) -> AsyncIterator[Proxy]:
    """A proxy on a free port."""
    host, port = address.rsplit(":", 1)
    proxy, tasks = Proxy(), asyncio.TaskGroup()

    async def serve(reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        answers, server = await asyncio.open_connection(host, int(port))
        connection = Connection(client=client, server=server)
        proxy.connections.append(connection)
        tasks.create_task(_forward_answers(answers, connection))
        tasks.create_task(_forward_requests(reader, connection))

    async with tasks:
        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        proxy.address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        try:
            yield proxy
        finally:
            listener.close()
            for connection in proxy.connections:
                connection.client.close()
                connection.server.close()


async def _forward_requests(reader: asyncio.StreamReader, connection: Connection) -> None:
    with suppress(ConnectionError):
        while not connection.requests_stopped.is_set() and (data := await reader.read(CHUNK_BYTES)):
            if not connection.requests_stopped.is_set():
                connection.server.write(data)
                await connection.server.drain()


async def _forward_answers(reader: asyncio.StreamReader, connection: Connection) -> None:
    with suppress(ConnectionError):
        while not connection.answers_stopped.is_set() and (data := await reader.read(CHUNK_BYTES)):
            if not connection.answers_stopped.is_set():
                connection.answered_bytes += len(data)
                connection.client.write(data)
                await connection.client.drain()
