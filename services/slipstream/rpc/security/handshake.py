"""TLS handshakes of our own, which answer two questions that gRPC does not answer.

Would another pod accept our certificate? And why did the handshake with an address fail?
"""

import socket
import ssl
from typing import Any

from slipstream.config import TlsConfig, addresses
from slipstream.rpc.security.failures import REFUSED, HandshakeFailure, failure_of

TRY_SECONDS = 3.0
ANSWER_SECONDS = 1.0
MAX_FLIGHTS = 10
"""More than the messages of any handshake."""


def own_certificate(config: TlsConfig) -> dict[str, Any]:
    """Return the fields of our certificate (see `ssl.SSLSocket.getpeercert`).

    They come from a handshake of a client and a server in memory, both with our files.
    Errors: ssl.SSLError when a pod with the same authority would refuse the certificate in either direction.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(config, check_name=False).wrap_bio(to_client, to_server)
    server = _server_context(config).wrap_bio(to_server, to_client, server_side=True)
    for _ in range(MAX_FLIGHTS):
        if all([_advance(client), _advance(server)]):
            break
    return client.getpeercert() or {}


def client_context(config: TlsConfig, *, check_name: bool) -> ssl.SSLContext:
    """Return a client context with our certificate and authority, for HTTP/2. Errors: OSError, SSLError."""
    return _filled(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), config, check_name=check_name)


def find_failure(address: str, config: TlsConfig) -> HandshakeFailure | None:
    """Connect to host:port as gRPC would, and return why the handshake fails; None when it succeeds.

    Also None when nothing listens at the address, because gRPC reports that itself. Blocks for at most
    TRY_SECONDS + ANSWER_SECONDS.
    """
    try:
        host, port = addresses.split_address(address)
        context = client_context(config, check_name=True)
        with (
            socket.create_connection((host, port), timeout=TRY_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            secure.settimeout(ANSWER_SECONDS)
            # With TLS 1.3 a client learns only after its handshake that the server refused its certificate.
            # gRPC's server then closes the connection instead of sending its HTTP/2 settings.
            if secure.recv(1) == b"":
                return _why_ours_was_refused(config)
    except ssl.SSLCertVerificationError as error:
        return failure_of(error.verify_message)
    except ssl.SSLError as error:
        return failure_of(error.reason or str(error))
    except (OSError, ValueError):
        return None
    return None


def _why_ours_was_refused(config: TlsConfig) -> HandshakeFailure:
    """Return why our certificate was refused. The server does not tell, so we verify it ourselves."""
    try:
        own_certificate(config)
    except ssl.SSLCertVerificationError as error:
        return failure_of(error.verify_message).as_ours()
    return REFUSED


def _server_context(config: TlsConfig) -> ssl.SSLContext:
    return _filled(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), config, check_name=False)


def _filled(context: ssl.SSLContext, config: TlsConfig, *, check_name: bool) -> ssl.SSLContext:
    context.check_hostname = check_name
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(config.authority)
    context.load_cert_chain(config.certificate, config.key)
    return context


def _advance(side: ssl.SSLObject) -> bool:
    """Send what can be sent; return True when this side has finished its handshake."""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
