"""The pool of connections to Redis."""

from redis.asyncio import BlockingConnectionPool
from redis.asyncio.connection import AbstractConnection


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
