"""A gRPC server with health, message limits and error mapping, in one call."""

from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health  # type: ignore[attr-defined]

from slipstream.config import RpcConfig
from slipstream.rpc.errors import ErrorInterceptor
from slipstream.telemetry.logs import Log

MIB = 1024 * 1024


class Server:
    """A running gRPC server. Health says SERVING only after `set_serving(True)`."""

    def __init__(self, server: grpc.aio.Server, servicer: health.HealthServicer, address: str) -> None:
        self.address = address
        self._server = server
        self._health = servicer

    async def set_serving(self, serving: bool) -> None:
        """Tell probes whether requests should be sent here."""
        status = health_pb2.HealthCheckResponse.ServingStatus
        await self._health.set("", status.SERVING if serving else status.NOT_SERVING)

    async def stop(self, *, grace: float) -> None:
        """Refuse new calls, let running ones finish for `grace` seconds, then end them."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace)


async def start_server(
    address: str, register: Callable[[grpc.aio.Server], None], *, config: RpcConfig, log: Log | None = None
) -> Server:
    """Listen on `address` (host:port, port 0 takes a free one) with the services that `register` adds.

    Errors: OSError when the port is in use, naming the address and the key to change.
    """
    server = grpc.aio.server(interceptors=[ErrorInterceptor(log)], options=channel_options(config))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    register(server)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(
            f"cannot listen on {address}: is the port in use? Set another `address` ({error})"
        ) from error
    await server.start()
    started = Server(server, servicer, f"{address.rsplit(':', 1)[0]}:{port}")
    await started.set_serving(False)
    return started


def channel_options(config: RpcConfig) -> list[tuple[str, int]]:
    """Message limits and keepalive, the same on both ends."""
    limit = config.max_message_mib * MIB
    return [
        ("grpc.max_send_message_length", limit),
        ("grpc.max_receive_message_length", limit),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ]
