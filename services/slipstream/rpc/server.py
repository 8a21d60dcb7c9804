"""A gRPC server with the health service, message limits, authorization and error mapping."""

from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health  # type: ignore[attr-defined]

from slipstream.config import RpcConfig
from slipstream.rpc.errors import ErrorInterceptor
from slipstream.rpc.security import authorization, loopback
from slipstream.rpc.security.certificates import Certificates, Material
from slipstream.telemetry.logs import Log

MIB = 1024 * 1024
SILENT_SECONDS = 2.0
"""Silence of a client after which it is pinged."""
GONE_SECONDS = 5.0
"""Deadline of the answer to a ping. After it the client's streams end, and a worker leaves the fleet."""


class Server:
    """A running gRPC server. Its health is SERVING only after `set_serving(True)`."""

    def __init__(self, server: grpc.aio.Server, servicer: health.HealthServicer, address: str) -> None:
        self.address = address
        self._server = server
        self._health = servicer

    async def set_serving(self, serving: bool) -> None:
        """Set the status that the health service reports."""
        status = health_pb2.HealthCheckResponse.ServingStatus
        await self._health.set("", status.SERVING if serving else status.NOT_SERVING)

    async def stop(self, *, grace: float) -> None:
        """Refuse new calls, and cancel those that still run after `grace` seconds."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace)


async def start_server(
    address: str,
    register: Callable[[grpc.aio.Server], None],
    *,
    config: RpcConfig,
    log: Log | None = None,
    connection_seconds: float | None = None,
) -> Server:
    """Listen on `address` (host:port, port 0 takes a free one) with the services that `register` adds.

    `connection_seconds`: maximum age of a connection. Clients then connect anew, and so discover new servers.
    None: a connection has no maximum age.
    Errors: OSError when the port is in use, with the address and the key to change; ConfigError for plaintext
    beyond loopback, and for unusable files of `rpc.tls`.
    """
    loopback.refuse_plaintext(address, config)
    interceptors: list[grpc.aio.ServerInterceptor[Any, Any]] = [ErrorInterceptor(log)]
    if config.tls is not None:
        interceptors.append(
            authorization.AuthorizationInterceptor(trust_domain=config.tls.trust_domain, log=log)
        )
    options = [
        *channel_options(config),
        *keepalive(ping_seconds=SILENT_SECONDS, answer_seconds=GONE_SECONDS),
        *_connection_age(connection_seconds),
    ]
    server = grpc.aio.server(interceptors=interceptors, options=options)
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    register(server)
    try:
        port = _listen(server, address, config, log)
    except RuntimeError as error:
        raise OSError(
            f"cannot listen on {address}: is the port in use? Set another `address` ({error})"
        ) from error
    await server.start()
    started = Server(server, servicer, f"{address.rsplit(':', 1)[0]}:{port}")
    await started.set_serving(False)
    return started


def _listen(server: grpc.aio.Server, address: str, config: RpcConfig, log: Log | None) -> int:
    if config.tls is None:
        return int(server.add_insecure_port(address))
    return int(server.add_secure_port(address, _server_credentials(Certificates(config.tls, log))))


def _connection_age(seconds: float | None) -> list[tuple[str, int]]:
    """After `seconds` a connection accepts no new call, and running calls have as many seconds to end."""
    if seconds is None:
        return []
    age = int(seconds * 1000)
    return [("grpc.max_connection_age_ms", age), ("grpc.max_connection_age_grace_ms", age)]


def channel_options(config: RpcConfig) -> list[tuple[str, int]]:
    """Return the message limits and the accepted rate of pings, which are the same on both ends."""
    limit = config.max_message_mib * MIB
    return [
        ("grpc.max_send_message_length", limit),
        ("grpc.max_receive_message_length", limit),
        ("grpc.so_reuseport", 0),
        ("grpc.enable_http_proxy", 0),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 500),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def keepalive(*, ping_seconds: float, answer_seconds: float) -> list[tuple[str, int]]:
    """Return options that end a connection when its peer does not answer a ping in time.

    gRPC's own threads answer pings, even while Python is busy. So a peer that does not answer has stopped or
    is disconnected. A ping also has a deadline of its own, by default a minute, beside the keepalive timeout.
    """
    return [
        ("grpc.keepalive_time_ms", round(1000 * ping_seconds)),
        ("grpc.keepalive_timeout_ms", round(1000 * answer_seconds)),
        ("grpc.http2.ping_timeout_ms", round(1000 * answer_seconds)),
    ]


def _server_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Return credentials that require a client certificate of our authority.

    A renewal leaves running connections alone. Every connection gets a configuration of its own, and so its
    own keys for session tickets. A client therefore cannot resume a session, by which it could connect again
    after its certificate has expired.
    """

    def fetch() -> grpc.ServerCertificateConfiguration:
        """Return the configuration of a new connection; gRPC calls this in a thread of its own."""
        return _configuration(certificates.current())

    return grpc.dynamic_ssl_server_credentials(fetch(), fetch, require_client_authentication=True)


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(material.key, material.certificate)], root_certificates=material.authority
    )
