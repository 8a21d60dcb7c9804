"""A TCP relay on loopback that stands between a client and a server, and delays, cuts or swallows answers."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

CHUNK_BYTES = 65536
ANSWER_BYTES = 60
"""A piece that is larger than this carries an answer, and not only frames of the protocol."""
PAUSE_SECONDS = 0.02
"""Pieces that follow each other faster belong to one answer."""


class Relay:
    """Passes bytes on, each direction `delay_seconds` late.

    Of the answers a share of `cut` ends its connection, and a share of `swallow` makes it half-open: requests
    still get through, and nothing ever comes back. `lost` counts both.
    """

    def __init__(self, target: str, *, delay_seconds: float, cut: float, swallow: float, seed: int) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._delay = delay_seconds
        self._random = random.Random(seed)
        self.cut = cut
        self.swallow = swallow
        self.lost = 0
        self.address = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        ways = [
            asyncio.create_task(self._pass_on(reader, far_writer, answers=False)),
            asyncio.create_task(self._pass_on(far_reader, writer, answers=True)),
        ]
        try:
            with suppress(asyncio.CancelledError):  # the end of the test
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in (writer, far_writer):
                end.transport.abort()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        """One direction: what is read now is written `delay` later, and more is read meanwhile."""
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        writing = asyncio.create_task(self._write(late, writer))
        loop, silent, last = asyncio.get_running_loop(), False, 0.0
        try:
            with suppress(OSError):
                while data := await reader.read(CHUNK_BYTES):
                    begins, last = loop.time() - last > PAUSE_SECONDS, loop.time()
                    if answers and begins and len(data) > ANSWER_BYTES:
                        if self._random.random() < self.cut:
                            self.lost += 1
                            return
                        if not silent and self._random.random() < self.swallow:
                            self.lost += 1
                            silent = True
                    if not silent:
                        late.put_nowait((loop.time() + self._delay, data))
        finally:
            writing.cancel()

    async def _write(self, late: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while True:
                when, data = await late.get()
                await asyncio.sleep(max(0.0, when - loop.time()))
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def relay(
    target: str, *, delay_seconds: float = 0.0, cut: float = 0.0, swallow: float = 0.0, seed: int = 1
) -> AsyncIterator[Relay]:
    """A relay to host:port, on a free port of its own."""
    between = Relay(target, delay_seconds=delay_seconds, cut=cut, swallow=swallow, seed=seed)
    server = await asyncio.start_server(between.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    between.address = f"{host}:{port}"
    try:
        yield between
    finally:
        server.close()
