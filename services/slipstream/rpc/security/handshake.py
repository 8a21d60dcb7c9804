"""TLS handshakes beside those of gRPC, to learn what gRPC does not say: is our own certificate good, and
why was a connection refused?"""

import socket
import ssl
from typing import Any

from slipstream.config import TlsConfig
from slipstream.config.addresses import split_address
from slipstream.rpc.security.reasons import OTHER, OURS, reason_of

TRY_SECONDS = 3.0
ANSWER_SECONDS = 1.0
TURNS = 10
"""More than the messages of any handshake."""


def own_certificate(config: TlsConfig) -> dict[str, Any]:
    """What our certificate says (as `ssl.SSLSocket.getpeercert`), after a handshake with ourselves in memory.

    Errors: ssl.SSLError when no other pod with the same authority would accept it in either direction.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(config, check_name=False).wrap_bio(to_client, to_server)
    server = _server_context(config).wrap_bio(to_server, to_client, server_side=True)
    for _ in range(TURNS):
        if all([_advance(client), _advance(server)]):
            break
    return client.getpeercert() or {}


def client_context(config: TlsConfig, *, check_name: bool) -> ssl.SSLContext:
    """The client's side: our certificate, our authority, HTTP/2. Errors: OSError, ssl.SSLError."""
    return _filled(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), config, check_name=check_name)


def why_refused(address: str, config: TlsConfig) -> str | None:
    """Connect to host:port as gRPC would, and say in words why the handshake fails; None when it does not.

    Blocks for some seconds at most. None too when nothing listens there, which gRPC says well itself.
    """
    try:
        host, port = split_address(address)
        context = client_context(config, check_name=True)
        with (
            socket.create_connection((host, port), timeout=TRY_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            secure.settimeout(ANSWER_SECONDS)
            if secure.recv(1) == b"":  # no HTTP/2 settings: gRPC's way to refuse what TLS 1.3 sent last
                return _why_ours(config)
    except ssl.SSLCertVerificationError as error:
        return reason_of(error.verify_message)
    except ssl.SSLError as error:
        return reason_of(error.reason or str(error))
    except (OSError, ValueError):
        return None
    return None


def _why_ours(config: TlsConfig) -> str:
    """Why our certificate was refused. The server does not tell, but we can look at it ourselves."""
    try:
        own_certificate(config)
    except ssl.SSLCertVerificationError as error:
        return reason_of(error.verify_message).replace(OTHER, f"it refused {OURS}, which")
    return f"it refused {OURS}, and its log says why: compare rpc.tls.authority on both sides"


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
    """True when this side has nothing more to say."""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
