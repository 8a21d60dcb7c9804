"""The policy version that an engine serves, or the newest that any rollout of an actor serves."""

import asyncio

from slipstream.records import NO_VERSION


class ServedVersion:
    """The version that the engine serves; while `serving` is false, the one that it served last."""

    def __init__(self) -> None:
        self.version = NO_VERSION
        self._serving = asyncio.Event()

    @property
    def serving(self) -> bool:
        """Whether a verified version is being served now."""
        return self._serving.is_set()

    async def wait(self) -> None:
        """Wait until a verified version is being served."""
        await self._serving.wait()

    def serve(self, version: int) -> None:
        """Record that the engine serves `version` from now on."""
        self.version = version
        self._serving.set()

    def suspend(self) -> None:
        """Record that the engine serves nothing until the next `serve`."""
        self._serving.clear()
