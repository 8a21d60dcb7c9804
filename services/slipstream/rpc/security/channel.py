"""A channel over mutual TLS whose certificates may be renewed while it is in use.

    call ─▶ current connection ─▶ … files renewed … ─▶ next call ─▶ new connection
                   └── its running calls go on; it is closed when the last of them has ended

A call waits for nothing here. A long stream keeps its connection, and so its certificate, until it ends.
"""

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

import grpc

from slipstream.rpc.security.certificates import Certificates, Material
from slipstream.rpc.security.handshake import why_refused
from slipstream.telemetry.logs import Log

EXPLAIN_SECONDS = 30.0
"""Shortest time between two explanations of why a server cannot be reached."""


class TlsChannel(grpc.aio.Channel):
    """Every new call uses the newest certificate, and no running call is ever cut by a renewal."""

    def __init__(
        self,
        address: str,
        *,
        certificates: Certificates,
        options: list[tuple[str, Any]],
        log: Log | None,
    ) -> None:
        self._address = address
        self._certificates = certificates
        self._options = options
        self._log = log
        self._connection = self._connect(certificates.current())
        self._retired: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._explain_after = 0.0

    def unary_unary(self, method: str, *given: Any, **options: Any) -> Any:
        return self._callable("unary_unary", method, *given, **options)

    def unary_stream(self, method: str, *given: Any, **options: Any) -> Any:
        return self._callable("unary_stream", method, *given, **options)

    def stream_unary(self, method: str, *given: Any, **options: Any) -> Any:
        return self._callable("stream_unary", method, *given, **options)

    def stream_stream(self, method: str, *given: Any, **options: Any) -> Any:
        return self._callable("stream_stream", method, *given, **options)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._newest().channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._newest().channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._newest().channel.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        for connection in (self._connection, *self._retired):
            await connection.channel.close(grace)
        for task in self._tasks:
            task.cancel()

    async def __aenter__(self) -> "TlsChannel":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(None)

    def _callable(self, kind: str, *given: Any, **options: Any) -> Callable[..., Any]:
        """What a stub keeps for a method: each call finds its connection anew."""

        def start(*arguments: Any, **settings: Any) -> Any:
            connection = self._newest()
            call = getattr(connection.channel, kind)(*given, **options)(*arguments, **settings)
            connection.calls += 1
            call.add_done_callback(lambda done: self._ended(connection, done))
            return call

        return start

    def _newest(self) -> "_Connection":
        """The connection of the newest certificate; the one before is closed with its last call."""
        material = self._certificates.current()
        if material is not self._connection.material:
            old, self._connection = self._connection, self._connect(material)
            self._retired.add(old)
            self._close_if_idle(old)
        return self._connection

    def _connect(self, material: Material) -> "_Connection":
        credentials = grpc.ssl_channel_credentials(material.authority, material.key, material.certificate)
        channel = grpc.aio.secure_channel(self._address, credentials, options=self._options)
        return _Connection(channel, material)

    def _ended(self, connection: "_Connection", call: Any) -> None:
        connection.calls -= 1
        self._close_if_idle(connection)
        now = asyncio.get_running_loop().time()
        if self._log is not None and not call.cancelled() and now >= self._explain_after:
            self._start(self._explain(self._log, call))

    def _close_if_idle(self, connection: "_Connection") -> None:
        if connection in self._retired and not connection.calls:
            self._retired.remove(connection)
            self._start(connection.channel.close(None))

    async def _explain(self, log: Log, call: Any) -> None:
        """Say why the server could not be reached, if the certificates are the reason."""
        if await call.code() is not grpc.StatusCode.UNAVAILABLE:
            return
        now = asyncio.get_running_loop().time()
        if now < self._explain_after:
            return  # another call that failed with this one is being explained
        self._explain_after = now + EXPLAIN_SECONDS
        reason = await asyncio.to_thread(why_refused, self._address, self._certificates.config)
        if reason is not None:
            log.warning("no secure connection", peer=self._address, reason=reason)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Connection:
    """One gRPC channel with one set of certificates, and how many calls run on it."""

    def __init__(self, channel: grpc.aio.Channel, material: Material) -> None:
        self.channel = channel
        self.material = material
        self.calls = 0
