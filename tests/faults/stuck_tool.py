"""An environment whose tool runs for minutes, in a thread that no signal ends."""

import time

from slipstream.actor.chat.tools import OwnTool
from slipstream.actor.environment import Episode
from slipstream.telemetry.logs import Log


def wait(seconds: float) -> str:
    """Wait."""
    time.sleep(seconds)
    return "waited"


class StuckTool:
    """Samples one turn, and calls the tool."""

    def __init__(self) -> None:
        self._tool = OwnTool(wait, seconds=300, log=Log(pod="actor"))

    async def run(self, episode: Episode) -> None:
        """See Environment."""
        await episode.sample()
        await self._tool.answer({"seconds": 300})
