"""A full or unreachable Redis: clear errors, unchanged data, and the same call succeeds later."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from redis import Redis
from replay.driver import ACCEPTED, completion, failure, run_config, scenario, serving, until
from replay.driver import Driver as ReplayDriver
from slipstream.replay.access import Access, without_credentials
from slipstream.replay.connection import connect
from slipstream.replay.redis_server import RedisServer


def test_a_full_redis_refuses_an_insert_and_accepts_it_later(redis_server: RedisServer) -> None:
    @scenario()
    async def play(replay: ReplayDriver) -> None:
        lease, _ = await replay.lease(2)
        before = await replay.stats()
        _set_maxmemory(redis_server, "1")
        error = await failure(replay.insert(lease))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "nothing was changed" in str(error.details())
        assert "Raise its maxmemory, or lower staleness.pipeline_depth" in str(error.details())
        assert await replay.stats() == before
        assert await replay.stored_bytes(lease.group_id) is None
        _set_maxmemory(redis_server, "0")
        assert await replay.insert(lease) == ACCEPTED

    try:
        play(redis_server.url)
    finally:
        _set_maxmemory(redis_server, "0")


def test_a_redis_that_takes_no_writes_is_unavailable_and_the_insert_is_accepted_later(
    redis_server: RedisServer,
) -> None:
    @scenario()
    async def play(replay: ReplayDriver) -> None:
        lease, _ = await replay.lease(2)
        _replicate(redis_server, "127.0.0.1", "1")  # as after a failover: of a master that is not there
        error = await failure(replay.insert(lease))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "takes no commands for now" in str(error.details())
        _replicate(redis_server, "NO", "ONE")
        assert await replay.insert(lease) == ACCEPTED

    try:
        play(redis_server.url)
    finally:
        _replicate(redis_server, "NO", "ONE")


def _replicate(server: RedisServer, host: str, port: str) -> None:
    with Redis.from_url(server.url) as redis:
        redis.execute_command("REPLICAOF", host, port)


def test_a_full_redis_can_be_emptied(redis_server: RedisServer) -> None:
    """Calls that free memory, and calls that keep the run going, work while memory is full."""

    @scenario(lease_seconds=0.05)
    async def play(replay: ReplayDriver) -> None:
        await replay.make(6)
        held, unscored, _ = await replay.lease(3)
        _set_maxmemory(redis_server, "1")
        assert await replay.insert_completions(unscored, [completion(reward=None)] * 2) > 0
        assert await replay.return_leases(held) == 1
        batch = await replay.sample(2)
        assert await replay.release(batch) == 2
        batch = await replay.sample(2)
        assert await replay.ack(batch, version=1) == 2
        await replay.announce(1)
        assert await replay.confirm(1) == 2
        assert await replay.attach(1) == (0, 0)
        assert (await replay.set_admission(paused=True)).changed
        await asyncio.sleep(0.06)
        assert (await replay.store.expire()).expired == 1

    try:
        play(redis_server.url)
    finally:
        _set_maxmemory(redis_server, "0")


def test_an_unreachable_redis_is_named_and_found_again_when_it_is_back(tmp_path: Path) -> None:
    async def play() -> None:
        server = RedisServer(tmp_path)
        await server.start()
        try:
            async with serving(server.url, run_config()) as replay:
                (lease,) = await replay.lease()
                await _end(server)
                error = await failure(replay.insert(lease))
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                assert f"Redis at {server.url} does not answer" in str(error.details())
                await server.start()
                assert await replay.insert(lease) == ACCEPTED
        finally:
            await server.stop()

    asyncio.run(play())


def test_a_login_that_was_cancelled_leaves_no_connection_to_the_next_caller(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """The first login waits for its password, which a named pipe delays until the caller is cancelled."""
    pipe = tmp_path / "password"
    os.mkfifo(pipe)

    async def play() -> None:
        async with connect(Access(url=redis_server.url, password_file=pipe)) as client:
            first = asyncio.create_task(client.ping())
            writer = await asyncio.to_thread(pipe.open, "w")  # opens once the login has begun to read
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            pipe.unlink()
            pipe.write_text(PASSWORD)
            writer.close()
            assert await client.ping()

    with password_of(redis_server):
        asyncio.run(play())


PASSWORD = "a word"


@contextmanager
def password_of(server: RedisServer) -> Iterator[None]:
    """Make Redis require PASSWORD of new connections."""
    with Redis.from_url(server.url) as before:
        before.config_set("requirepass", PASSWORD)
        try:
            yield
        finally:
            before.config_set("requirepass", "")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://ada:secret@db.example:6379/2?password=secret", "redis://db.example:6379/2"),
        ("rediss://:p%40ss@10.0.0.1:6380", "rediss://10.0.0.1:6380"),
        ("unix://ada@/run/redis.sock?password=secret", "unix:///run/redis.sock"),
    ],
)
def test_an_address_is_shown_without_its_credentials(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


def test_an_error_names_the_address_without_its_credentials() -> None:
    async def play() -> None:
        async with serving("redis://ada:secret@127.0.0.1:1/0", run_config()) as replay:
            error = await failure(replay.lease())
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "redis://127.0.0.1:1/0" in str(error.details())
            assert "secret" not in str(error.details())

    asyncio.run(play())


async def _end(server: RedisServer) -> None:
    with Redis.from_url(server.url) as client:
        client.shutdown(nosave=True)
    await until(lambda: server.exit_status is not None)


def _set_maxmemory(server: RedisServer, limit: str) -> None:
    with Redis.from_url(server.url) as client:
        client.config_set("maxmemory", limit)
