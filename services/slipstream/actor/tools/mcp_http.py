"""An MCP server at a URL: streamable HTTP, with a bound on what a response may hold."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from slipstream.actor.adapters.local_server import ServerFailed
from slipstream.actor.tools.mcp_process import MESSAGE_BYTES

CONNECT_SECONDS = 30.0
ANSWER_SECONDS = 5.0
"""Time beyond the deadline of a call after which its request is given up on the wire."""


class ServerAtUrl:
    """A server that somebody else runs."""

    why = ""

    def __init__(self, url: str, *, seconds: float) -> None:
        """`seconds`: longest silence of a response."""
        self._url = url
        self._seconds = seconds

    @asynccontextmanager
    async def transport(self, ended: asyncio.Event) -> AsyncIterator[TransportStreams]:
        """Yield the streams of a session."""
        async with (
            bounded_client(self._seconds + ANSWER_SECONDS) as http,
            streamable_http_client(self._url, http_client=http, max_sse_event_size=MESSAGE_BYTES) as streams,
        ):
            yield streams


def bounded_client(seconds: float) -> httpx2.AsyncClient:
    """Return a client whose responses are not compressed, and which ends one that is too long."""
    return httpx2.AsyncClient(
        headers={"accept-encoding": "identity"},
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=seconds, pool=None),
        limits=httpx2.Limits(max_connections=None),
        event_hooks={"response": [_bound]},
    )


async def _bound(response: httpx2.Response) -> None:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ServerFailed("the response is compressed, which was not asked for")
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    if not is_stream:  # the events of a stream are bounded one by one
        response.stream = _Bounded(response.stream)


class _Bounded(httpx2.AsyncByteStream):
    """A body that raises an error when it is too long."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > MESSAGE_BYTES:
                raise ServerFailed(f"a response has more than {MESSAGE_BYTES >> 20} MiB")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
