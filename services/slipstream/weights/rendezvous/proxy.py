"""Forwards bytes between two connections in both directions, until one of them ends."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

CHUNK_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Stream:
    """Both directions of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def connect(cls, host: str, port: int) -> Self:
        """Connect to the address. Errors: OSError."""
        return cls(*await asyncio.open_connection(host, port))


async def proxy(near: Stream, far: Stream) -> None:
    """Copy bytes both ways; close both connections as soon as either of them ends or breaks."""
    try:
        async with asyncio.TaskGroup() as tasks:
            copies = [
                tasks.create_task(_copy(near.reader, far.writer)),
                tasks.create_task(_copy(far.reader, near.writer)),
            ]
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            for copy in copies:
                copy.cancel()
    finally:
        near.writer.close()
        far.writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
