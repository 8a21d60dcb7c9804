"""A real Redis server for tests."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.replay.redis_server import RedisServer


@contextmanager
def embedded_redis(folder: Path) -> Iterator[RedisServer]:
    """Run a Redis server until the context ends."""
    server = RedisServer(folder)
    asyncio.run(server.start(timeout=20))
    try:
        yield server
    finally:
        asyncio.run(server.stop())
