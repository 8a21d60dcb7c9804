"""Checkpoints of the learner: when they are written, pruned and confirmed, and whether they take too long."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

import grpc
import torch

from slipstream.config import CheckpointConfig
from slipstream.learner.checkpoints import checkpoint, shards
from slipstream.learner.clients import ReplayClient
from slipstream.learner.lockstep import Lockstep
from slipstream.learner.training.state import collect
from slipstream.records import Cursor
from slipstream.rpc.errors import SlipstreamError, Unreachable
from slipstream.samples.timeline.writer import NO_TIMELINE, Timeline
from slipstream.telemetry import background, logs
from slipstream.telemetry.metrics import Metrics

ASSUMED_BYTES_PER_SECOND: Final = 100e6
"""Assumed speed of the volume, a slow one, until a checkpoint has been written."""
WRITTEN_SHARE: Final = 0.5
"""Share of the grace period that writing may take; the rest is for the running step and a busy volume."""
MOMENTS: Final = 2


class NotSaved(SlipstreamError):
    """A requested checkpoint was not written; the message has the reason."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class Saver:
    """Writes at most one checkpoint at a time. Invariant: a version is confirmed only after it is durable.

    If a checkpoint cannot be written (a full disk), that is logged and counted, the last checkpoint stays,
    and the run continues.
    """

    def __init__(
        self,
        *,
        root: Path,
        config: CheckpointConfig,
        lockstep: Lockstep,
        replay: ReplayClient,
        model_fingerprint: str,
        durable: int | None,
        timeline: Timeline = NO_TIMELINE,
        metrics: Metrics,
        log: logs.Log,
    ) -> None:
        self._root = root
        self._config = config
        self._lockstep = lockstep
        self._replay = replay
        self._fingerprint = model_fingerprint
        self._timeline = timeline
        self._metrics = metrics
        self._log = log
        self._turn = asyncio.Lock()
        self._failure = ""
        self._writing: background.BackgroundTask[None] | None = None
        self._begun: int | None = None
        self._started = 0.0
        self._held = 0.0
        metrics.count("checkpoint_failures_total", 0)  # so that a rate sees the first one
        metrics.set("checkpoint_version", durable or 0)
        self.durable = durable
        """The newest version with a complete checkpoint."""

    def due(self, version: int) -> bool:
        """Return whether this version gets a checkpoint."""
        return version % self._config.every_steps == 0

    async def begin(self, version: int, cursor: Cursor, unvaried_share: float | None) -> None:
        """Begin to write the state at `version` in the background. Errors: RankLost."""
        began = time.monotonic()
        try:
            async with self._turn:
                await self._begin_once(version, cursor, unvaried_share)
        finally:
            self._held += time.monotonic() - began

    def held_seconds(self) -> float:
        """Return for how long `begin` has held training since the last call of this method."""
        held, self._held = self._held, 0.0
        return held

    async def settle(self) -> None:
        """Wait until the current checkpoint is written. Errors: RankLost."""
        async with self._turn:
            await self._settle()

    async def save(self, version: int, cursor: Cursor, unvaried_share: float | None) -> None:
        """Write the checkpoint of `version`, and wait for it.

        Errors: RankLost, and whatever else than a counted OSError keeps the version from being durable.
        """
        async with self._turn:
            await self._begin_once(version, cursor, unvaried_share)
            await self._settle()

    async def durable_since(self, version: int) -> int:
        """Wait for a checkpoint that was begun at `version`; return the newest durable version.

        Errors: NotSaved with the reason, RankLost.
        """
        await self.settle()
        if self.durable is None or self.durable < version:
            stays = "there is none yet" if self.durable is None else f"that of step {self.durable} stays"
            raise NotSaved(f"the checkpoint of step {version} was not written: {self._failure}; {stays}")
        return self.durable

    async def _begin_once(self, version: int, cursor: Cursor, unvaried_share: float | None) -> None:
        """Begin the checkpoint of `version`, unless it is durable or being written."""
        if version not in (self.durable, self._begun):
            await self._settle()
            await self._begin(version, cursor, unvaried_share)

    async def _begin(self, version: int, cursor: Cursor, unvaried_share: float | None) -> None:
        began = time.monotonic()
        memory = self._lockstep.training.memory.to_dict()
        state = checkpoint.State(
            version=version,
            model_fingerprint=self._fingerprint,
            memory=memory,
            cursor=asdict(cursor),
            unvaried_share=unvaried_share,
        )
        try:
            with self._metrics.timing("step_seconds", phase="checkpoint"):
                await self._lockstep.begin_checkpoint(state)
        except OSError as error:
            self._count_failure(version, error)
            self._timeline.add("checkpoint", began, time.monotonic(), step=version, failed=True)
            return
        self._begun = version
        self._started = time.monotonic()
        self._writing = background.BackgroundTask.begin(
            self._finish(version, began), "checkpoint", self._log, step=version
        )

    async def _settle(self) -> None:
        """Wait for the checkpoint that is being written. Whatever its end, the version may be tried again."""
        writing, self._writing = self._writing, None
        try:
            if writing is not None:
                await writing.settle()
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._begun = None

    async def _finish(self, version: int, began: float) -> None:
        """Wait until the checkpoint that was begun at the moment `began` is durable, and confirm it."""
        try:
            await self._lockstep.settle_checkpoint()
        except OSError as error:
            self._count_failure(version, error)
            self._timeline.add("checkpoint", began, time.monotonic(), step=version, failed=True)
            return
        self._timeline.add("checkpoint", began, time.monotonic(), step=version)
        self.durable = version
        self._metrics.set("checkpoint_version", version)
        self._warn(too_slow(time.monotonic() - self._started, stop_seconds=self._config.stop_seconds))
        with suppress(OSError):
            await asyncio.to_thread(checkpoint.prune, self._root, keep=self._config.keep)
        try:
            await self._replay.confirm_checkpoint(version)
        except Unreachable as error:
            self._log.warning(
                "checkpoint not confirmed; the next one will be", step=version, error=str(error)
            )

    def warn_of_size(self) -> None:
        """Warn if a checkpoint will probably take longer than the time between SIGTERM and SIGKILL."""
        size = expected_bytes(collect(self._lockstep.training))
        self._warn(too_large(size, stop_seconds=self._config.stop_seconds))

    def _warn(self, reason: str | None) -> None:
        if reason is not None:
            self._log.warning("raise the grace period (chart: learner.stopSeconds)", reason=reason)

    def _count_failure(self, version: int, error: OSError) -> None:
        self._begun, self._failure = None, str(error)  # a request may try the version again
        self._metrics.count("checkpoint_failures_total")
        self._log.error("checkpoint not written; the last one stays", step=version, error=str(error))


def expected_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    """Return the size of a checkpoint after the first step, from its tensors now, which may lack moments."""
    size = shards.whole_bytes(tensors)
    if any("optimizer/" in name for name in tensors):
        return size
    trained = {n: t for n, t in tensors.items() if n.startswith(("model/", "critic/module/"))}
    return size + MOMENTS * shards.whole_bytes(trained)


def too_large(size: int, *, stop_seconds: float | None) -> str | None:
    """Return why a checkpoint of this size may be killed, before any was written; None if it may not."""
    seconds = size / ASSUMED_BYTES_PER_SECOND
    if stop_seconds is None or seconds <= WRITTEN_SHARE * stop_seconds:
        return None
    return (
        f"a checkpoint is about {size / 1e9:.1f} GB, which takes {seconds:.0f} s at "
        f"{ASSUMED_BYTES_PER_SECOND / 1e6:.0f} MB/s, and the learner is killed {stop_seconds:g} s after "
        "SIGTERM"
    )


def too_slow(seconds: float, *, stop_seconds: float | None) -> str | None:
    """Return why the next checkpoint may be killed, after one that took `seconds`; None if it may not."""
    if stop_seconds is None or seconds <= WRITTEN_SHARE * stop_seconds:
        return None
    return f"the checkpoint took {seconds:.0f} s, and the learner is killed {stop_seconds:g} s after SIGTERM"
