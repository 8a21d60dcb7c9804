"""The connection to Redis, the scripts, and what its errors mean for a caller."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from typing import Any, cast
from urllib.parse import urlsplit

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from slipstream.rpc.errors import OutOfMemory, Unreachable

SCRIPTS = (
    "lease",
    "pass_rates",
    "decide",
    "return",
    "expire",
    "insert",
    "insert_evaluation",
    "sample",
    "release",
    "ack",
    "announce",
    "confirm",
    "attach",
    "start_evaluation",
    "stats",
)
CONNECTIONS = 32
ANSWER_SECONDS = 10.0


class Scripts:
    """The atomic steps, by name, on the keys of one run; every Redis error comes out as one of ours.

    A call is never sent twice: only the caller knows what to do about a lost answer.
    """

    def __init__(self, url: str, *, prefix: str) -> None:
        self.prefix = prefix
        self._shown_url = without_credentials(url)
        self._redis = _connect(url)
        self._scripts = {name: self._redis.register_script(text) for name, text in _read_scripts().items()}

    async def call(self, name: str, *arguments: str | int | float | bytes) -> Any:
        """Run one script. Errors: OutOfMemory, Unreachable."""
        with translated_errors(self._shown_url):
            return await self._scripts[name](keys=[self.prefix], args=arguments)

    async def read_hash(self, key: str) -> dict[bytes, bytes]:
        """All fields of a hash; empty when there is none. Errors: Unreachable."""
        with translated_errors(self._shown_url):
            return cast(dict[bytes, bytes], await self._redis.hgetall(self.prefix + key))

    async def read_field(self, key: str, field: str) -> bytes | None:
        """One field of a hash. Errors: Unreachable."""
        with translated_errors(self._shown_url):
            return cast(bytes | None, await self._redis.hget(self.prefix + key, field))

    async def info(self, section: str) -> Mapping[str, Any]:
        """What Redis says about itself; empty where this user may not ask. Errors: Unreachable."""
        with translated_errors(self._shown_url):
            try:
                return cast(Mapping[str, Any], await self._redis.info(section))
            except exceptions.NoPermissionError:
                return {}

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()


@contextmanager
def translated_errors(shown_url: str) -> Iterator[None]:
    """Turn the errors of the Redis client into errors that say what to do."""
    try:
        yield
    except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
        raise Unreachable(
            f"Redis at {shown_url} does not answer ({error}); is it running, and is replay.redis_url right?"
        ) from error
    except exceptions.ResponseError as error:
        if "OOM command not allowed" not in str(error):
            raise
        raise OutOfMemory(
            f"Redis at {shown_url} has reached maxmemory and refused the write; nothing was changed. "
            "Raise its maxmemory, or lower staleness.pipeline_depth so that fewer groups are buffered"
        ) from error


def without_credentials(url: str) -> str:
    """The address without user, password and query, fit for logs and errors."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _connect(url: str) -> Redis:
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=CONNECTIONS,
        timeout=ANSWER_SECONDS,
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
    return Redis.from_pool(pool)


def _read_scripts() -> Mapping[str, str]:
    folder = resources.files(__package__) / "scripts"
    common = (folder / "common.lua").read_text(encoding="utf-8")
    return {name: common + (folder / f"{name}.lua").read_text(encoding="utf-8") for name in SCRIPTS}
