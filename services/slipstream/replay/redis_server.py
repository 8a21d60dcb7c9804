"""An embedded Redis: a redis-server or valkey-server as a child process, durable in a directory.

start ──▶ lock the directory ──▶ spawn ──▶ wait for PING (the append-only file is replayed) ──▶ url
stop  ──▶ SHUTDOWN by SIGTERM ──▶ wait, bounded ──▶ SIGKILL if need be ──▶ unlock

The child inherits the lock, so the directory stays locked until the last server on it is gone.
"""

import asyncio
import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import IO

from redis import exceptions
from redis.asyncio import Redis

from slipstream.processes.lifetime.parent_death import with_parent_death
from slipstream.replay.redis_executable import RedisExecutable, find_redis, require_reads
from slipstream.rpc.errors import Unreachable

START_SECONDS = 60.0
LOCK_SECONDS = 5.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.02
PING_SECONDS = 2.0
LOG_TAIL_BYTES = 2000
SOCKET_PATH_BYTES = 108  # the kernel's limit


class RedisServer:
    """One redis-server on a private unix socket; the kernel kills it when this process dies.

    Invariant: at most one server uses a directory. A write that Redis has confirmed survives a kill of Redis.
    """

    def __init__(self, directory: Path, executable: RedisExecutable | None = None) -> None:
        """`executable`: None for the one that `find_redis` prefers. Errors: FileNotFoundError."""
        self.executable = executable or find_redis()
        self._directory = directory.expanduser().resolve()
        self._socket_dir = _make_socket_directory()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address for clients; it stays the same after a restart."""
        return f"unix://{self._socket_dir / 'redis.sock'}"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """The exit status of the server; None while it runs."""
        assert self._process is not None, "the server was not started"
        return self._process.poll()

    async def start(self, *, timeout: float = START_SECONDS) -> None:
        """Start the server, also after it has died. Call this in the main thread: the child dies with that
        thread.

        Errors: Unreachable with the end of the log when the server does not answer within `timeout` seconds;
        ValueError when a newer server wrote the files of the directory.
        """
        require_reads(self.executable, self._directory)
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self._directory / "redis.lock").open("a") as lock:
            await self._acquire(lock)
            self._process = self._spawn(lock)
        await self._wait_for_ping(timeout)

    async def stop(self) -> None:
        """Shut down, at the latest after STOP_SECONDS, and remove the socket. May be called twice."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            if not await self._exits(STOP_SECONDS):
                self._process.kill()
                await self._exits(STOP_SECONDS)
        shutil.rmtree(self._socket_dir, ignore_errors=True)

    async def _acquire(self, lock: IO[str]) -> None:
        """Lock the directory, waiting LOCK_SECONDS for a server that is shutting down.

        Errors: Unreachable.
        """
        deadline = asyncio.get_running_loop().time() + LOCK_SECONDS
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise Unreachable(
                        f"another Redis uses {self._directory}; stop that run or set another replay.redis_dir"
                    ) from error
            await asyncio.sleep(POLL_SECONDS)

    def _spawn(self, lock: IO[str]) -> subprocess.Popen[bytes]:
        with (self._directory / "redis.log").open("ab") as log:
            return subprocess.Popen(
                with_parent_death(
                    _command(self.executable.path, self._directory, self._socket_dir / "redis.sock")
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock.fileno()],
                start_new_session=True,  # Ctrl-C reaches only the pod, which stops Redis last
            )

    async def _wait_for_ping(self, timeout: float) -> None:
        """Wait until Redis answers PING, after it has read its append-only file. Errors: Unreachable."""
        deadline = asyncio.get_running_loop().time() + timeout
        client = Redis.from_url(self.url, retry=None, socket_timeout=PING_SECONDS)
        try:
            while not await _pings(client):
                if self.exit_status is not None:
                    raise Unreachable(f"Redis exited with status {self.exit_status}\n{self._log_tail()}")
                if asyncio.get_running_loop().time() > deadline:
                    await self.stop()
                    raise Unreachable(f"Redis did not answer within {timeout:g} s\n{self._log_tail()}")
                await asyncio.sleep(POLL_SECONDS)
        finally:
            await client.aclose()

    async def _exits(self, seconds: float) -> bool:
        assert self._process is not None
        try:
            await asyncio.to_thread(self._process.wait, seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _log_tail(self) -> str:
        path = self._directory / "redis.log"
        tail = path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        return f"The end of {path}:\n{tail}"


def _make_socket_directory() -> Path:
    """Make a directory that only this user can enter, with a name short enough for the path of a socket."""
    folder = Path(tempfile.mkdtemp(prefix="slipstream-redis-"))
    if len(os.fsencode(folder / "redis.sock")) < SOCKET_PATH_BYTES:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="slipstream-redis-", dir="/tmp"))


async def _pings(client: Redis) -> bool:
    try:
        return bool(await client.ping())
    except (exceptions.ConnectionError, exceptions.TimeoutError, OSError):
        return False


def _command(program: Path, directory: Path, socket: Path) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(directory),
        "daemonize": "no",
        "save": "",
        "appendonly": "yes",
        "appendfsync": "always",  # with everysec, Redis answers before a slow flush is done
        "maxmemory-policy": "noeviction",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    return [str(program), *arguments]
