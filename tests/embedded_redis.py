"""A real Redis for the tests that need one."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.replay.redis_server import RedisServer


@contextmanager
def embedded_redis(folder: Path) -> Iterator[RedisServer]:
    """Runs for as long as the context is entered."""
    server = RedisServer(folder)
    asyncio.run(server.start(timeout=20))
    try:
        yield server
    finally:
        asyncio.run(server.stop())
