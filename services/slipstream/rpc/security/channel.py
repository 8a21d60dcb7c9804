"""A channel over mutual TLS that uses renewed certificates without interrupting a call.

    call ─▶ current connection ─▶ … files renewed … ─▶ next call ─▶ new connection
                   └── running calls stay on the old connection, which closes with the last of them

No call waits for a renewal. A long stream keeps its connection, and so its certificate, until it ends.
"""

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

import grpc

from slipstream.rpc.security.certificates import Certificates, Material
from slipstream.rpc.security.handshake import find_failure
from slipstream.telemetry.background import BackgroundTask
from slipstream.telemetry.logs import Log

EXPLAIN_SECONDS = 30.0
"""Minimum time between two log lines on why a server cannot be reached."""


class TlsChannel(grpc.aio.Channel):
    """Invariant: every new call uses the newest certificate, and no renewal interrupts a running call."""

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
        self._tasks: set[BackgroundTask[None]] = set()
        self._explain_after = 0.0

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._callable("unary_unary", method, *arguments, **options)

    def unary_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._callable("unary_stream", method, *arguments, **options)

    def stream_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._callable("stream_unary", method, *arguments, **options)

    def stream_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._callable("stream_stream", method, *arguments, **options)

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

    def _callable(self, kind: str, *method: Any, **options: Any) -> Callable[..., Any]:
        """Return the callable that a stub keeps for a method; each call picks the newest connection."""

        def start(*arguments: Any, **settings: Any) -> Any:
            connection = self._newest()
            call = getattr(connection.channel, kind)(*method, **options)(*arguments, **settings)
            connection.calls += 1
            call.add_done_callback(lambda done: self._ended(connection, done))
            return call

        return start

    def _newest(self) -> "_Connection":
        """Return the connection with the newest certificate. Older ones close with their last call."""
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
        if self._log is not None and not call.cancelled():
            self._start(self._explain(self._log, call), "search for the reason of a failed handshake")

    def _close_if_idle(self, connection: "_Connection") -> None:
        if connection in self._retired and not connection.calls:
            self._retired.remove(connection)
            self._start(connection.channel.close(None), "closing of a connection")

    async def _explain(self, log: Log, call: Any) -> None:
        """Log why the server could not be reached, if the certificates are the reason."""
        failed, now = await call.code() is grpc.StatusCode.UNAVAILABLE, asyncio.get_running_loop().time()
        if not failed or now < self._explain_after:
            return
        self._explain_after = now + EXPLAIN_SECONDS
        failure = await asyncio.to_thread(find_failure, self._address, self._certificates.config)
        if failure is not None:
            log.warning("no secure connection", peer=self._address, reason=str(failure))

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        BackgroundTask.begin(work, name, self._log or Log(pod="rpc")).keep_in(self._tasks)


class _Connection:
    """One gRPC channel with one set of certificates, and the number of calls that run on it."""

    def __init__(self, channel: grpc.aio.Channel, material: Material) -> None:
        self.channel = channel
        self.material = material
        self.calls = 0
