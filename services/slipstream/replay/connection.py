"""The connection to Redis, and the Lua scripts on the keys of one run."""

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, cast

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from slipstream.replay.access import Access
from slipstream.replay.redis_errors import translated_errors

SCRIPTS = (
    "lease",
    "pass_rates",
    "decide",
    "renew",
    "return",
    "expire",
    "insert",
    "insert_evaluation",
    "sample",
    "release",
    "drop",
    "keep_filtered",
    "take_filtered",
    "take_evaluated",
    "ack",
    "announce",
    "confirm",
    "attach",
    "set_admission",
    "start_evaluation",
    "stats",
    "activity",
    "report_rollout",
    "list_rollouts",
)
CONNECTIONS = 32
ANSWER_SECONDS = 10.0


class Scripts:
    """The Lua scripts, by name, on the keys of one run. Errors of the Redis client become errors of
    `rpc.errors`.

    No call is repeated here: only the caller knows whether a call whose response was lost may be repeated.
    """

    def __init__(self, access: Access, *, prefix: str) -> None:
        self.prefix = prefix
        self._access = access
        self._redis = connect(access)
        self._scripts = {name: self._redis.register_script(text) for name, text in _read_scripts().items()}

    async def call(self, name: str, *arguments: str | int | float | bytes) -> Any:
        """Execute one script. Errors: OutOfMemory, Unreachable, Superseded."""
        with translated_errors(self._access):
            return await self._scripts[name](keys=[self.prefix], args=arguments)

    async def read_hash(self, key: str) -> dict[bytes, bytes]:
        """Return all fields of a hash; empty if the hash is missing. Errors: Unreachable."""
        with translated_errors(self._access):
            return cast(dict[bytes, bytes], await self._redis.hgetall(self.prefix + key))

    async def read_fields(self, keys: Sequence[str], field: str) -> list[bytes | None]:
        """Return the same field of several hashes, in one round trip. Errors: Unreachable."""
        with translated_errors(self._access):
            async with self._redis.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.hget(self.prefix + key, field)
                return cast(list[bytes | None], await pipeline.execute())

    async def info(self, section: str) -> Mapping[str, Any]:
        """Return a section of INFO; empty if the user has no permission for INFO. Errors: Unreachable."""
        with translated_errors(self._access):
            try:
                return cast(Mapping[str, Any], await self._redis.info(section))
            except exceptions.NoPermissionError:
                return {}

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()


class LoggedInConnectionPool(BlockingConnectionPool):
    """A blocking pool that closes a connection whose login did not end.

    redis-py 8 keeps a connection open if its caller is cancelled between the TCP connect and AUTH, while the
    password is read. The next caller would send commands on a connection that is not logged in, and Redis
    would refuse them («unauthenticated multibulk length», NOAUTH).
    """

    async def ensure_connection(self, connection: AbstractConnection) -> None:
        """Connect and log in; on any exception, cancellation included, close the connection."""
        try:
            await super().ensure_connection(connection)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise


def connect(access: Access) -> Redis:
    """Return a client that reads the password file at each new connection."""
    pool = LoggedInConnectionPool.from_url(
        access.url,
        max_connections=CONNECTIONS,
        timeout=ANSWER_SECONDS,
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 0),
        **access.options(),
    )
    return Redis.from_pool(pool)


def _read_scripts() -> Mapping[str, str]:
    folder = resources.files(__package__) / "scripts"
    common = (folder / "common.lua").read_text(encoding="utf-8")
    return {name: common + (folder / f"{name}.lua").read_text(encoding="utf-8") for name in SCRIPTS}
