"""The learner's end of the rendezvous' door: nobody reaches the store without a nonce of this epoch.

    worker ── nonce ──▶ gate (weights.host) ── in force? ── welcome ──▶ worker
    worker ◀── store's protocol, relayed ──▶ gate ◀──▶ store (loopback only)

torch's store has no authentication, so it listens where only this machine gets to, and the gate listens for
the workers. Nonces are handed out over the fleet's stream, which knows who is there. The weights themselves
travel between the members and never pass here.
"""

import asyncio
import errno
import hmac
import ipaddress
import secrets
import socket
import threading
import time
from contextlib import suppress

from slipstream.telemetry.logs import Log
from slipstream.weights.relay import Stream, relay

NONCE_BYTES = 32
WELCOME = b"+"
STORE_HOST = "127.0.0.1"
PATIENCE_SECONDS = 5.0
AT_ONCE = 100
MOST_WAITING = 256  # more than are accepted AT_ONCE, so that a member's nonce is read before its turn to go
MOST_KNOCKING = 1024  # the kernel has one that comes on top of these try again after a second
LOG_SECONDS = 1.0

Connection = asyncio.StreamWriter


class Gate:
    """Relays a connection to the store once it has shown a nonce that is in force.

    Invariant: before that not one of its bytes reaches the store. At most MOST_WAITING connections have shown
    none; one more pushes out the oldest, so that silent ones cannot keep a member out. A thread of its own
    carries it, because forming a group blocks the caller's.
    """

    def __init__(
        self, *, host: str, port: int, store_port: int, log: Log, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._store_port = store_port
        self._patience = patience_seconds
        self._refusals = Refusals(log)
        self._left: dict[bytes, int] = {}
        self._waiting: dict[asyncio.Task[None], None] = {}
        self._admitted: set[Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._closed = asyncio.Event()
        threading.Thread(target=self._run, name="rendezvous gate", daemon=True).start()

    def issue(self, *, connections: int) -> bytes:
        """A new nonce, which lets so many connections through and is then used up."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._loop.call_soon_threadsafe(self._left.__setitem__, nonce, connections)
        return nonce

    def retire(self) -> None:
        """The epoch is over: its nonces let nobody in, and whoever came in by them is cut off the store."""
        self._loop.call_soon_threadsafe(self._retire)

    def close(self) -> None:
        """Stop listening, and cut everybody off."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._closed.set)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._meet, sock=self._socket, backlog=AT_ONCE)
        self._socket.listen(MOST_KNOCKING)
        await self._closed.wait()
        server.close()
        self._retire()

    def _retire(self) -> None:
        self._left.clear()
        for connection in self._admitted:
            connection.transport.abort()

    async def _meet(self, reader: asyncio.StreamReader, writer: Connection) -> None:
        """One connection, from its first byte to its end."""
        peer = _name(writer)
        fault = await self._look_at(reader, writer)
        if fault is not None:
            self._refusals.note(fault, peer)
            writer.transport.abort()
            return
        try:
            store = await Stream.connect(STORE_HOST, self._store_port)
            writer.write(WELCOME)
            with suppress(asyncio.CancelledError):  # at the gate's end; asyncio wants no cancelled task here
                await relay(Stream(reader, writer), store)
        except OSError as error:
            self._refusals.note(f"the store did not answer: {error}", peer)
            writer.transport.abort()
        finally:
            self._admitted.discard(writer)

    async def _look_at(self, reader: asyncio.StreamReader, writer: Connection) -> str | None:
        """None once the connection has shown a nonce and is among the admitted; else why it may not be."""
        task = asyncio.current_task()
        assert task is not None
        self._make_room()
        self._waiting[task] = None
        try:
            async with asyncio.timeout(self._patience):
                shown = await reader.readexactly(NONCE_BYTES)
        except TimeoutError:
            return f"it showed no nonce within {self._patience:g} s"
        except asyncio.IncompleteReadError:
            return "it went away before it had shown a nonce"
        except OSError:
            return "it broke before it had shown a nonce"
        except asyncio.CancelledError:
            return f"more than {MOST_WAITING} connections were showing no nonce, and it was the oldest"
        finally:
            del self._waiting[task]
        if not self._use(shown):
            return "its nonce is not one of this epoch, or was used up"
        self._admitted.add(writer)
        return None

    def _make_room(self) -> None:
        waiting = [task for task in self._waiting if not task.cancelling()]
        if len(waiting) >= MOST_WAITING:
            waiting[0].cancel()

    def _use(self, shown: bytes) -> bool:
        """Take one connection off the nonce; compared in a time that says nothing of how much was right."""
        matches = [nonce for nonce in self._left if hmac.compare_digest(nonce, shown)]
        for nonce in matches:
            self._left[nonce] -= 1
            if self._left[nonce] <= 0:
                del self._left[nonce]
        return bool(matches)


class Refusals:
    """Logs who was refused and why: for each reason at once, then at most a line in LOG_SECONDS."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._unlogged: dict[str, int] = {}
        self._logged_at: dict[str, float] = {}

    def note(self, reason: str, peer: str) -> None:
        """Somebody was refused."""
        now = time.monotonic()
        if now - self._logged_at.get(reason, -LOG_SECONDS) < LOG_SECONDS:
            self._unlogged[reason] = self._unlogged.get(reason, 0) + 1
            return
        self._logged_at[reason] = now
        unlogged = self._unlogged.pop(reason, 0)
        self._log.warning("rendezvous refused a connection", peer=peer, reason=reason, unlogged=unlogged)


def family_of(host: str) -> socket.AddressFamily:
    """IPv4 where the host has such an address, else IPv6. Errors: OSError for a name that is not known."""
    families = {found[0] for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return socket.AF_INET if socket.AF_INET in families else socket.AF_INET6


def _listen(host: str, port: int) -> socket.socket:
    """Errors: ValueError for an address of all interfaces, OSError for one that is not this machine's."""
    try:
        listening = socket.create_server((host, port), family=family_of(host))
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        raise OSError(
            error.errno,
            f"weights.host {host} is no address of this machine; set SLIPSTREAM_WEIGHTS_HOST to the pod's",
        ) from error
    bound = listening.getsockname()[0]
    if ipaddress.ip_address(bound).is_unspecified:
        listening.close()
        raise ValueError(
            f"weights.host {host!r} listens on all addresses, and workers need one that they can reach; "
            "set SLIPSTREAM_WEIGHTS_HOST to the pod's address"
        )
    return listening


def _name(writer: Connection) -> str:
    peer = writer.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if peer else "unknown"
