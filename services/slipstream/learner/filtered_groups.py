"""The groups that replay has filtered or dropped, for the samples of a run. No step waits for them."""

import grpc

from slipstream.learner.clients import ReplayClient
from slipstream.rpc.errors import SlipstreamError
from slipstream.samples.writer import FilteredGroup
from slipstream.telemetry import background, logs


class FilteredGroups:
    """Takes the groups in the background. What arrives after the end of a step is stored with a later one.

    Each group is taken from replay once, so a call is never cancelled while the run goes on.
    """

    def __init__(self, replay: ReplayClient, log: logs.Log) -> None:
        self._replay = replay
        self._log = log
        self._taken: list[FilteredGroup] = []
        self._call: background.BackgroundTask[None] | None = None

    def begin(self) -> None:
        """Begin to take the groups that are new, unless a call is running."""
        if self._call is None or self._call.done:
            self._call = background.BackgroundTask.begin(self._take(), "filtered groups", self._log)

    async def settle(self) -> None:
        """Wait until a running call has ended, which the timeout of replay bounds."""
        if self._call is not None:
            await self._call.wait()

    def taken(self) -> list[FilteredGroup]:
        """Return the groups that have arrived since the last call of this method."""
        taken, self._taken = self._taken, []
        return taken

    async def _take(self) -> None:
        try:
            async for group in self._replay.take_filtered():
                self._taken.append(group)
        except (SlipstreamError, grpc.aio.AioRpcError) as error:
            self._log.warning("filtered groups are not stored", error=f"{type(error).__name__}: {error}")
