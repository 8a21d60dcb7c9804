"""A member's end of the rendezvous: shows the nonce to the server, then tunnels torch's store client.

torch's store client can only connect to an address. So it connects to a port of the loopback, which accepts
one connection and forwards it over the authenticated one. Each process opens a tunnel of its own.
"""

import asyncio
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

from slipstream.weights.rendezvous.proxy import Stream, proxy
from slipstream.weights.rendezvous.server import ADMITTED

LOOPBACK = "127.0.0.1"
GREETING_BYTES = 10  # of torch's client: the number of the protocol, and an id that the store sends back
ID_BYTES = 4


class NonceRefused(OSError):
    """The rendezvous server refused this member's nonce, or did not answer it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunnel:
    """A port of the loopback that forwards one connection to the learner's store; `ended` tells its end."""

    port: int
    ended: Future[None] = field(default_factory=Future)


def open_tunnel(*, host: str, port: int, nonce: bytes, timeout_seconds: float) -> Tunnel:
    """Return a tunnel that waits for its connection until the timeout.

    Blocks until the server has answered. Errors: NonceRefused, and OSError when the server is out of reach.
    """
    authenticated = _authenticate(host, port, nonce, timeout_seconds)
    listening = socket.create_server((LOOPBACK, 0), backlog=1)
    listening.settimeout(timeout_seconds)
    tunnel = Tunnel(port=listening.getsockname()[1])
    threading.Thread(
        target=_carry, args=(listening, authenticated, tunnel.ended), name="rendezvous tunnel", daemon=True
    ).start()
    return tunnel


def _authenticate(host: str, port: int, nonce: bytes, timeout_seconds: float) -> socket.socket:
    connection = socket.create_connection((host, port), timeout_seconds)
    try:
        connection.sendall(nonce)
        answer = connection.recv(len(ADMITTED))
    except TimeoutError as error:
        connection.close()
        raise NonceRefused(
            f"the rendezvous at {host}:{port} did not answer in {timeout_seconds:g} s"
        ) from error
    except OSError:
        answer = b""
    if answer != ADMITTED:
        connection.close()
        raise NonceRefused(
            f"the rendezvous at {host}:{port} refused this member's nonce; the learner's log says why"
        )
    return connection


def _carry(listening: socket.socket, authenticated: socket.socket, ended: Future[None]) -> None:
    """Accept a single connection, and forward it until it ends."""
    try:
        with authenticated, listening, suppress(OSError, EOFError):
            connection, _ = listening.accept()
            listening.close()
            with connection:
                asyncio.run(_forward(connection, authenticated))
    finally:
        ended.set_result(None)


async def _forward(near: socket.socket, far: socket.socket) -> None:
    client, store = [Stream(*await asyncio.open_connection(sock=each)) for each in (near, far)]
    greeting = await client.reader.readexactly(GREETING_BYTES)
    store.writer.write(greeting)
    client.writer.write(await _answer(store) or greeting[-ID_BYTES:])
    await proxy(client, store)


async def _answer(store: Stream) -> bytes:
    """Return the store's answer to a greeting; nothing if the server has cut this member off.

    torch's client repeats an unanswered greeting until its timeout, and the rollout would miss the next
    epoch. So `_forward` answers the greeting itself: the client's first request then fails at once.
    """
    with suppress(OSError):
        return await store.reader.read(ID_BYTES)
    return b""
