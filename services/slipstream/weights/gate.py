"""The learner's end of the rendezvous' door: nobody reaches the store without a nonce of this epoch.

    worker ── nonce ──▶ gate (weights.host) ── in force? ── welcome ──▶ worker
    worker ◀── store's protocol, relayed ──▶ gate ◀──▶ store (loopback only)

torch's store has no authentication, so it listens where only this machine gets to, and the gate listens for
the workers. Nonces are handed out over the fleet's stream, which knows who is there. The weights themselves
travel between the members and never pass here.
"""

import asyncio
import hmac
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from slipstream.telemetry.logs import Log
from slipstream.weights.address import listen
from slipstream.weights.refusals import Refusals
from slipstream.weights.relay import Stream, relay

NONCE_BYTES = 32
WELCOME = b"+"
STORE_HOST = "127.0.0.1"
PATIENCE_SECONDS = 5.0
AT_ONCE = 100
MOST_WAITING = 256  # more than are accepted AT_ONCE, so that a member's nonce is read before its turn to go
MOST_KNOCKING = 1024  # the kernel has one that comes on top of these try again after a second

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
        self._socket = listen(host, port)
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
        self._soon(self._left.__setitem__, nonce, connections)
        return nonce

    def retire(self) -> None:
        """The epoch is over: its nonces let nobody in, and whoever came in by them is cut off the store."""
        self._soon(self._retire)

    def close(self) -> None:
        """Stop listening, and cut everybody off."""
        self._soon(self._closed.set)

    def _soon(self, change: Callable[..., object], *arguments: Any) -> None:
        """Change something before the next connection is looked at."""
        with suppress(RuntimeError):  # the loop has ended, and with it whatever could be changed
            self._loop.call_soon_threadsafe(change, *arguments)

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
            await relay(Stream(reader, writer), store)
        except OSError as error:
            self._refusals.note(f"the store did not answer: {error}", peer)
        except asyncio.CancelledError:  # at the gate's end; asyncio wants no cancelled task here
            pass
        finally:
            self._admitted.discard(writer)
            writer.close()

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
            if self._closed.is_set():
                return "the gate closed"
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


def _name(writer: Connection) -> str:
    peer = writer.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if peer else "unknown"
