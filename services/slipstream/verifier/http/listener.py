"""The HTTP server of the verifier: uvicorn on a socket of ours, with mutual TLS where gRPC has it."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from slipstream.config import RpcConfig, TlsConfig, addresses
from slipstream.rpc.security.certificates import Certificates
from slipstream.rpc.security.loopback import refuse_plaintext
from slipstream.telemetry import background, logs
from slipstream.telemetry.listening import listen
from slipstream.verifier.http.access import App, Guard
from slipstream.verifier.http.protocol import protocol

MIB = 1024 * 1024
MAX_CONNECTIONS = 512
IDLE_SECONDS = 60
PATIENCE_SECONDS = 30.0
"""Deadline for the head of a request, and again for its body."""


class HttpServer:
    """A running server."""

    def __init__(self, server: "_Server", task: background.BackgroundTask[None], address: str) -> None:
        self.address = address
        self._server = server
        self._task = task

    async def stop(self) -> None:
        """Take no new requests, and let running ones finish for the time that was given at the start."""
        self._server.should_exit = True
        await self._task.settle()


async def start_http(
    app: App,
    address: str,
    *,
    config: RpcConfig,
    log: logs.Log,
    grace: int,
    patience: float = PATIENCE_SECONDS,
    connections: int = MAX_CONNECTIONS,
) -> HttpServer:
    """Listen on host:port; port 0 takes a free one. `grace` and `patience`, which a caller has for the head
    of a request and again for its body, are in seconds; `connections` is how many there may be.

    With rpc.tls a caller needs a certificate of our trust domain, and renewed files serve from the next
    connection on.
    Errors: OSError when the port is in use; ConfigError for plaintext beyond loopback, and for certificates
    that cannot be used.
    """
    refuse_plaintext(address, config)
    secure = config.tls is not None
    guarded = Guard(
        app,
        max_bytes=config.max_message_mib * MIB,
        body_seconds=patience,
        secure=secure,
        local=addresses.is_loopback(address)
        and not secure,  # with TLS, the client has checked the server's name
        log=log,
    )
    settings = uvicorn.Config(
        guarded,
        http=protocol(
            head_seconds=patience,
            connections=connections,
            trust_domain=config.tls.trust_domain if config.tls else None,
            log=log,
        ),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # the response tells the caller what is wrong
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=grace,
    )
    settings.load()
    if config.tls is not None:
        settings.ssl = _renewing(Certificates(config.tls, log))
    listening = _listen(address)
    server = _Server(settings)
    task = background.BackgroundTask.begin(server.serve(sockets=[listening]), "HTTP server", log)
    return HttpServer(server, task, f"{address.rpartition(':')[0]}:{listening.getsockname()[1]}")


class _Server(uvicorn.Server):
    """Leaves SIGTERM to the pod."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(address: str) -> socket.socket:
    try:
        return listen(*addresses.split_address(address), backlog=MAX_CONNECTIONS)
    except OSError as error:
        raise OSError(
            f"cannot listen on {address}: is the port in use? Set another verifier.http_address ({error})"
        ) from error


def _renewing(certificates: Certificates) -> ssl.SSLContext:
    """A context that hands every connection to one made of the files as they are now."""
    newest = (certificates.current(), _context(certificates.config))

    def renew(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        nonlocal newest
        material = certificates.current()
        if material is not newest[0]:
            newest = (material, _context(certificates.config))
        connection.context = newest[1]

    outer = _context(certificates.config)
    outer.sni_callback = renew
    return outer


def _context(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0  # a resumed session would outlive a removed authority
    context.set_alpn_protocols(["http/1.1"])
    context.load_verify_locations(config.authority)
    context.load_cert_chain(config.certificate, config.key)
    return context
