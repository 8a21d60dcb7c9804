"""A learner and a rollout that stop or are killed at a call that the test names."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from learner.fakes import Events, silent_log
from slipstream.records import Group
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics


class Killed(Exception):
    """The process is gone."""


@dataclass(slots=True, kw_only=True)
class Script:
    """What happens to a session «before» or «after» a call, named by its method and version: «after ack 3».

    Once killed, no call gets through any more.
    """

    at: Mapping[str, "Happening"] = field(default_factory=dict)
    events: Events = field(default_factory=Events)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    log: Log = field(default_factory=silent_log)
    metrics: Metrics = field(default_factory=Metrics)
    killed: bool = False

    async def call(self, what: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call. Errors: Killed, before or after it."""
        await self._reach(f"before {what}")
        value = await call()
        self.events.note(what)
        await self._reach(f"after {what}")
        return value

    async def _reach(self, place: str) -> None:
        if place in self.at:
            await self.at[place](self)
        if self.killed:
            raise Killed


Happening = Callable[[Script], Awaitable[None]]


async def stop(script: Script) -> None:
    """As Ctrl-C does."""
    script.stop.set()


async def kill(script: Script) -> None:
    """As SIGKILL does, to learner and worker at once."""
    script.killed = True


async def kill_once_2_is_durable(script: Script) -> None:
    """As SIGKILL does, when the checkpoint of version 2, which is written meanwhile, is there."""
    await script.events.wait_for("confirm_checkpoint 2")
    script.killed = True


class Mortal:
    """A client all of whose calls go through a script; a call is named by its method and last argument."""

    def __init__(self, client: Any, script: Script) -> None:
        self._client = client
        self._script = script

    async def take_filtered(self) -> AsyncIterator[Any]:
        async def collect() -> list[Any]:
            return [group async for group in self._client.take_filtered()]

        for group in await self._script.call("take_filtered", collect):
            yield group

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **named: Any) -> Any:
            what = arguments[-1] if arguments else ""
            name = what.dispatch_index if isinstance(what, Group) else what
            inner = getattr(self._client, method)
            return await self._script.call(f"{method} {name}", lambda: inner(*arguments, **named))

        return call
