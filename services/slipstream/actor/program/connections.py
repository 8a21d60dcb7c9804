"""Bounds on the connections of the endpoint: an agent may open as many as it likes, and never use them."""

import asyncio
import resource
from typing import Final

from uvicorn.protocols.http.auto import AutoHTTPProtocol

MOST_CONNECTIONS: Final = 2048
OPEN_FILES: Final = 16_384
"""Open files that an actor may want: those of connections, of programs, and of streams to rollouts."""


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # one of two classes, as installed
    """One of MOST_CONNECTIONS connections.

    An idle one ends for a new one, or when no request comes for the keep-alive time.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        """See asyncio.Protocol."""
        if len(self.connections) >= MOST_CONNECTIONS and not self._end_an_idle_one():
            self.transport = transport
            transport.abort()
            return
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _end_an_idle_one(self) -> bool:
        """End an idle connection; return whether there was one."""
        idle = (each for each in self.connections if each.cycle is None or each.cycle.response_complete)
        ended = next(idle, None)
        if ended is None:
            return False
        self.connections.discard(ended)
        ended.transport.abort()
        return True


def raise_limit_of_files() -> None:
    """Raise this process's soft limit of open files to OPEN_FILES, or as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
