"""The learner's end of the rendezvous: forwards a connection to torch's store after it showed a valid nonce.

    rollout ── nonce ──▶ server (weights.host) ── valid? ── ADMITTED ──▶ rollout
    rollout ◀── the store's protocol, forwarded ──▶ server ◀──▶ store (loopback only)

torch's store has no authentication. So the store listens on the loopback, and this server listens for the
rollouts. The fleet's stream gives each rollout its nonce. The weights themselves travel between the members
and never pass through this server.
"""

import asyncio
import hmac
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from slipstream.telemetry.logs import Log
from slipstream.weights.rendezvous.addresses import listen
from slipstream.weights.rendezvous.proxy import Stream, proxy

NONCE_BYTES = 32
ADMITTED = b"+"
STORE_HOST = "127.0.0.1"
NONCE_TIMEOUT_SECONDS = 5.0
ACCEPT_BATCH = 100
MAX_UNAUTHENTICATED = 256  # above ACCEPT_BATCH, so that a nonce is read before its connection is pushed out
LOG_SECONDS = 1.0
LISTEN_BACKLOG = 1024  # the kernel makes further connections retry after a second

Connection = asyncio.StreamWriter


class RendezvousServer:
    """Forwards a connection to the store once it has shown a valid nonce.

    Invariant: no byte of an unauthenticated connection reaches the store. At most MAX_UNAUTHENTICATED
    connections may be open without a nonce; a further one closes the oldest, so that silent connections
    cannot keep a member out. The server runs in a thread of its own, because forming a group blocks the
    thread of the caller.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        store_port: int,
        log: Log,
        nonce_timeout_seconds: float = NONCE_TIMEOUT_SECONDS,
    ) -> None:
        self._socket = listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._store_port = store_port
        self._nonce_timeout = nonce_timeout_seconds
        self._refusals = _RefusalLog(log)
        self._uses_left: dict[bytes, int] = {}
        self._used: set[bytes] = set()
        self._unauthenticated: dict[asyncio.Task[None], None] = {}
        self._authenticated: set[Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._closed = asyncio.Event()
        threading.Thread(target=self._run, name="rendezvous server", daemon=True).start()

    def issue_nonce(self, *, connections: int) -> bytes:
        """Return a new nonce, which is valid for this number of connections."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._schedule(self._uses_left.__setitem__, nonce, connections)
        return nonce

    def used(self, nonce: bytes) -> bool:
        """Return whether all connections of a nonce of this epoch have shown it."""
        return nonce in self._used

    def end_epoch(self) -> None:
        """Invalidate all nonces, and close every connection to the store."""
        self._schedule(self._end_epoch)

    def close(self) -> None:
        """Stop listening, and close every connection to the store."""
        self._schedule(self._closed.set)

    def _schedule(self, change: Callable[..., object], *arguments: Any) -> None:
        """Run a change in the server's thread, before the server reads the next nonce."""
        with suppress(RuntimeError):  # the loop has ended, and nothing is left to change
            self._loop.call_soon_threadsafe(change, *arguments)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._handle, sock=self._socket, backlog=ACCEPT_BATCH)
        self._socket.listen(LISTEN_BACKLOG)
        await self._closed.wait()
        server.close()
        self._end_epoch()

    def _end_epoch(self) -> None:
        self._uses_left.clear()
        self._used.clear()
        for connection in self._authenticated:
            connection.transport.abort()

    async def _handle(self, reader: asyncio.StreamReader, writer: Connection) -> None:
        """Serve one connection, from its first byte to its end."""
        peer = _name(writer)
        refusal = await self._authenticate(reader, writer)
        if refusal is not None:
            self._refusals.note(refusal, peer)
            writer.transport.abort()
            return
        try:
            store = await Stream.connect(STORE_HOST, self._store_port)
            writer.write(ADMITTED)
            await proxy(Stream(reader, writer), store)
        except OSError as error:
            self._refusals.note(f"the store did not answer: {error}", peer)
        except asyncio.CancelledError:  # the loop ends; start_server logs a handler that ends as cancelled
            pass
        finally:
            self._authenticated.discard(writer)
            writer.close()

    async def _authenticate(self, reader: asyncio.StreamReader, writer: Connection) -> str | None:
        """Read the nonce of a connection; return None if it is valid, else the reason of the refusal."""
        task = asyncio.current_task()
        assert task is not None
        self._evict_oldest()
        self._unauthenticated[task] = None
        try:
            async with asyncio.timeout(self._nonce_timeout):
                nonce = await reader.readexactly(NONCE_BYTES)
        except TimeoutError:
            return f"it showed no nonce within {self._nonce_timeout:g} s"
        except asyncio.IncompleteReadError:
            return "it closed before it had shown a nonce"
        except OSError:
            return "it broke before it had shown a nonce"
        except asyncio.CancelledError:
            if self._closed.is_set():
                return "the rendezvous closed"
            return f"more than {MAX_UNAUTHENTICATED} connections were showing no nonce, and it was the oldest"
        finally:
            del self._unauthenticated[task]
        if not self._use(nonce):
            return "its nonce is not one of this epoch, or was used up"
        self._authenticated.add(writer)
        return None

    def _evict_oldest(self) -> None:
        """Make room for a new connection without a nonce."""
        waiting = [task for task in self._unauthenticated if not task.cancelling()]
        if len(waiting) >= MAX_UNAUTHENTICATED:
            waiting[0].cancel()

    def _use(self, nonce: bytes) -> bool:
        """Take one use off the nonce, if it is valid. The comparison takes constant time."""
        matches = [issued for issued in self._uses_left if hmac.compare_digest(issued, nonce)]
        for issued in matches:
            self._uses_left[issued] -= 1
            if self._uses_left[issued] <= 0:
                del self._uses_left[issued]
                self._used.add(issued)
        return bool(matches)


def _name(writer: Connection) -> str:
    peer = writer.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if peer else "unknown"


class _RefusalLog:
    """Logs the peer and the reason of a refusal: at most one line for each reason in LOG_SECONDS."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._unlogged: dict[str, int] = {}
        self._logged_at: dict[str, float] = {}

    def note(self, reason: str, peer: str) -> None:
        """Log a refusal, or count it for the next line with this reason."""
        now = time.monotonic()
        if now - self._logged_at.get(reason, -LOG_SECONDS) < LOG_SECONDS:
            self._unlogged[reason] = self._unlogged.get(reason, 0) + 1
            return
        self._logged_at[reason] = now
        unlogged = self._unlogged.pop(reason, 0)
        self._log.warning("rendezvous refused a connection", peer=peer, reason=reason, unlogged=unlogged)
