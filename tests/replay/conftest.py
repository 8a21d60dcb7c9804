"""One real Redis for each test module."""

import asyncio
from collections.abc import Iterator

import pytest
from slipstream.replay.redis_server import RedisServer


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    asyncio.run(server.start(timeout=20))
    yield server
    asyncio.run(server.stop())


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    return redis_server.url
