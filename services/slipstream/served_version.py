"""The policy version that an engine serves, or the newest that any rollout of an actor serves."""

import asyncio

from slipstream.records import NO_VERSION


class ServedVersion:
    """In a rollout the version of its engine, in an actor the newest version of its rollouts.

    While `serving` is False, `version` is the version that was served last.
    """

    def __init__(self) -> None:
        self.version = NO_VERSION
        self._serving = asyncio.Event()

    @property
    def serving(self) -> bool:
        """Whether a version is served now.

        False before the first version, during a weight update, and in an actor without a rollout that serves.
        """
        return self._serving.is_set()

    async def wait(self) -> None:
        """Wait until `serving` is True."""
        await self._serving.wait()

    def serve(self, version: int) -> None:
        """Record that the engine serves `version` from now on."""
        self.version = version
        self._serving.set()

    def suspend(self) -> None:
        """Record that the engine serves nothing until the next `serve`."""
        self._serving.clear()
