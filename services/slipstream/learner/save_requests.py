"""Checkpoints that somebody requests while the run goes on.

    SaveCheckpoint ─▶ the running step ends ─▶ the checkpoint is begun ─▶ it is durable ─▶ its version
                      the loop waits ───────────────▲     └─▶ the next step trains

A request waits for the end of the running step, and for nothing while the loop waits for a batch. Then it
waits until the files are written. The caller's deadline bounds both; the checkpoint is written all the same.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from slipstream.learner.saving import NotSaved
from slipstream.telemetry import background, logs


class SaveRequests:
    """Requests at the same time share one checkpoint. It is written to its end if they are cancelled, too."""

    def __init__(self, log: logs.Log) -> None:
        self._log = log
        self._ended = False
        self._save: Callable[[], Coroutine[Any, Any, int]] | None = None
        self._running: background.BackgroundTask[int] | None = None

    def serve(self, save: Callable[[], Coroutine[Any, Any, int]]) -> None:
        """Answer requests from now on. `save` writes a checkpoint, and returns its version."""
        self._save = save

    async def end(self) -> None:
        """Refuse requests from now on, and wait for the one that is served. Its caller gets its failure."""
        self._ended = True
        if self._running is not None:
            await self._running.wait()

    async def save(self) -> int:
        """Have a checkpoint written; return its version once it is durable. Errors: NotSaved, RankLost."""
        if self._ended:
            raise NotSaved("training has ended, and the learner ends; its last checkpoint stays")
        if self._save is None:
            raise NotSaved(
                "the learner has no checkpoint to write: it is loading, or it runs a stage that samples "
                "first and saves its model at the end of each round"
            )
        if self._running is None or self._running.done:
            self._running = background.BackgroundTask.begin_unlogged(
                self._save(), "requested checkpoint", self._log
            )
        return await self._running.settle_shielded()


class SteadyWeights:
    """Keeps requests and steps apart. Invariant: no request saves half a step, or one that failed."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._steady = True

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Give the block to a step. If it fails, no request is served any more."""
        async with self._turn:
            self._steady = False
            yield
            self._steady = True

    @asynccontextmanager
    async def unchanged(self) -> AsyncIterator[None]:
        """Give the block to a request, between two steps. Errors: NotSaved after a step that failed."""
        async with self._turn:
            if not self._steady:
                raise NotSaved("the last step failed, and the learner ends; its last checkpoint stays")
            yield
