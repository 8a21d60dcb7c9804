"""A member's end of the rendezvous' door: shows the nonce to the learner's gate for torch's store.

The store's client can only connect to an address. It is given one of the loopback that takes one connection,
which the gate has already let in; each process opens its own.
"""

import asyncio
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

from slipstream.weights.gate import WELCOME
from slipstream.weights.relay import Stream, relay

LOOPBACK = "127.0.0.1"
GREETING_BYTES = 10  # of torch's client: the protocol's number, and an id that it wants to hear back
ID_BYTES = 4


class NotAdmitted(OSError):
    """The gate did not let this member in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    """A port of the loopback that leads to the learner's store for one connection, and that one's end."""

    port: int
    ended: Future[None] = field(default_factory=Future)


def enter(*, host: str, port: int, nonce: bytes, timeout_seconds: float) -> Entrance:
    """An entrance that waits for its connection until the timeout.

    Blocks until the gate has answered. Errors: NotAdmitted, and OSError when the gate is out of reach.
    """
    admitted = _admitted(host, port, nonce, timeout_seconds)
    listening = socket.create_server((LOOPBACK, 0), backlog=1)
    listening.settimeout(timeout_seconds)
    entrance = Entrance(port=listening.getsockname()[1])
    threading.Thread(
        target=_carry, args=(listening, admitted, entrance.ended), name="rendezvous entrance", daemon=True
    ).start()
    return entrance


def _admitted(host: str, port: int, nonce: bytes, timeout_seconds: float) -> socket.socket:
    connection = socket.create_connection((host, port), timeout_seconds)
    try:
        connection.sendall(nonce)
        answer = connection.recv(len(WELCOME))
    except TimeoutError as error:
        connection.close()
        raise NotAdmitted(f"the gate at {host}:{port} did not answer in {timeout_seconds:g} s") from error
    except OSError:
        answer = b""
    if answer != WELCOME:
        connection.close()
        raise NotAdmitted(
            f"the gate at {host}:{port} refused this member's nonce; the learner's log says why"
        )
    return connection


def _carry(listening: socket.socket, admitted: socket.socket, ended: Future[None]) -> None:
    """Take one connection, nobody else's after it, and relay it to its end."""
    try:
        with admitted, listening, suppress(OSError, EOFError):
            connection, _ = listening.accept()
            listening.close()
            with connection:
                asyncio.run(_relay(connection, admitted))
    finally:
        ended.set_result(None)


async def _relay(near: socket.socket, far: socket.socket) -> None:
    client, store = [Stream(*await asyncio.open_connection(sock=each)) for each in (near, far)]
    greeting = await client.reader.readexactly(GREETING_BYTES)
    store.writer.write(greeting)
    client.writer.write(await _answer(store) or greeting[-ID_BYTES:])
    await relay(client, store)


async def _answer(store: Stream) -> bytes:
    """The store's to a greeting; nothing when the gate has cut this member off.

    A client that is not answered tries again until its timeout, and its worker misses the next epoch. One
    that is learns from the first thing it asks that there is no store any more.
    """
    with suppress(OSError):
        return await store.reader.read(ID_BYTES)
    return b""
