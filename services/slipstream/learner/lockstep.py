"""All ranks execute the same commands: rank 0 chooses a command, and sends it to the others before it begins.

    rank 0   train ─▶ snapshot ─▶ begin checkpoint ─▶ settle checkpoint ─▶ … ─▶ finish
               │ before each, a RankCommand and the batch
    rank 1…  follow: the same methods of the same objects, until `finish`

Commands run in a thread. If a rank dies or hangs, all others fail with RankLost within
learner.collective_timeout_seconds.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from slipstream.learner.broadcast.snapshot import Snapshot
from slipstream.learner.checkpoints.checkpoint import CheckpointWriter, State
from slipstream.learner.checkpoints.shards import whole_bytes
from slipstream.learner.ranks.ranks import Alone, RankLost, TorchRanks, named_loss
from slipstream.learner.training import gradients, record, step
from slipstream.learner.training.state import collect
from slipstream.records import Group
from slipstream.rpc import codec
from slipstream.v1 import learner_pb2 as pb
from slipstream.v1 import types_pb2

T = TypeVar("T")
WeightUpdate = Callable[[Callable[[], None]], None]
GRACE_SECONDS: Final = 20.0
"""How long another rank waits for rank 0's next command after SIGTERM. While a checkpoint is being written,
it waits for as long as rank 0 lives."""
BEAT_SECONDS: Final = 1.0


class Lockstep:
    """Executes commands on all ranks, one at a time; called on rank 0.

    Errors of every method: RankLost, and those that it names.
    """

    def __init__(
        self,
        ranks: Alone | TorchRanks,
        training: step.TrainingStep,
        snapshot: Snapshot,
        writer: CheckpointWriter,
    ) -> None:
        self.training = training
        self._snapshot = snapshot
        self._writer = writer
        self._ranks = ranks
        self._turn = asyncio.Lock()

    async def train(
        self,
        groups: Sequence[Group],
        *,
        version: int,
        stopped: Callable[[], bool],
        unvaried_share: float | None,
    ) -> record.StepResult:
        """Train on a batch: see TrainingStep.train."""
        command = pb.TrainBatch(version=version, unvaried_share=unvaried_share)

        def work() -> record.StepResult:
            return self.training.train(
                groups,
                version=version,
                update=_after_copying(self._snapshot, self._writer),
                stopped=stopped,
                unvaried_share=unvaried_share,
            )

        return await self._on_all_ranks(pb.RankCommand(train=command), work, groups)

    async def take_snapshot(self, *, probe: bool = True) -> None:
        """Copy the weights for a publication. Nothing may be reading the last copy. See Snapshot.take."""
        await self.begin_snapshot(probe=probe)
        await self.settle_snapshot()

    async def begin_snapshot(self, *, probe: bool = True) -> None:
        """Begin to copy the weights. A step that changes them before they are copied waits for it."""
        command = pb.RankCommand(snapshot=pb.TakeSnapshot(probe=probe))
        await self._on_all_ranks(command, lambda: self._snapshot.begin(probe=probe))

    def copy_wait_seconds(self) -> float:
        """Return for how long this rank's updates have waited for copies since the last call."""
        return self._snapshot.held_seconds()

    async def settle_snapshot(self) -> None:
        """Wait until the weights are copied. Errors: those of copying them."""
        await asyncio.to_thread(self._snapshot.wait)

    async def begin_checkpoint(self, state: State) -> None:
        """Begin to write a checkpoint in the background. Errors: OSError."""
        state = replace(state, bytes=whole_bytes(collect(self.training)))
        await asyncio.to_thread(self._writer.prepare, state, self.training.policy)
        command = pb.RankCommand(save=pb.SaveCheckpoint(version=state.version))
        await self._on_all_ranks(command, lambda: self._writer.begin(state.version, collect(self.training)))

    async def settle_checkpoint(self) -> Path | None:
        """Wait until the last checkpoint is written, then give it its name. Errors: OSError."""
        await asyncio.to_thread(self._writer.wait)
        return await self._on_all_ranks(pb.RankCommand(settle=pb.SettleCheckpoint()), self._writer.settle)

    async def beat(self) -> None:
        """Send heartbeats until cancelled, so that the other ranks wait while rank 0 waits for data."""
        while isinstance(self._ranks, TorchRanks):
            self._ranks.heartbeat.beat()
            await asyncio.sleep(BEAT_SECONDS)

    async def finish(self) -> None:
        """End the other ranks."""
        await self._on_all_ranks(pb.RankCommand(finish=pb.Finish()), lambda: None)

    async def _on_all_ranks(
        self, command: pb.RankCommand, work: Callable[[], T], groups: Sequence[Group] = ()
    ) -> T:
        async with self._turn:
            return await asyncio.to_thread(self._execute, command, work, groups)

    def _execute(self, command: pb.RankCommand, work: Callable[[], T], groups: Sequence[Group]) -> T:
        if isinstance(self._ranks, TorchRanks):
            batch = [codec.group_to_proto(group).SerializeToString() for group in groups]
            self._ranks.tell([command.SerializeToString(), *batch])
        with named_loss(self._ranks):
            return work()


def follow(
    ranks: TorchRanks, training: step.TrainingStep, snapshot: Snapshot, writer: CheckpointWriter
) -> None:
    """Execute rank 0's commands until `finish`. Errors: RankLost, also when rank 0 is gone."""
    terminated: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):  # rank 0 gets it too, and writes a checkpoint first
        signal.signal(number, lambda number, _: terminated.append(number))
    heard = time.monotonic()
    while True:
        messages = ranks.listen()
        if messages is None and ranks.heartbeat.heard():
            heard = time.monotonic() if writer.busy else heard
            if terminated and time.monotonic() - heard > GRACE_SECONDS:
                return
            continue
        heard = time.monotonic()
        if messages is None:
            raise RankLost(f"rank {ranks.rank}: rank 0 has not been heard of for too long")
        command = pb.RankCommand.FromString(messages[0])
        if command.WhichOneof("command") == "finish":
            return
        with named_loss(ranks):
            _execute_command(command, messages[1:], training, snapshot, writer)


def _execute_command(
    command: pb.RankCommand,
    batch: Sequence[bytes],
    training: step.TrainingStep,
    snapshot: Snapshot,
    writer: CheckpointWriter,
) -> None:
    match command.WhichOneof("command"):
        case "train":
            _train(command.train, batch, training, _after_copying(snapshot, writer))
        case "snapshot":
            snapshot.begin(probe=command.snapshot.probe)
        case "save":
            writer.begin(command.save.version, collect(training))
        case "settle":
            _settle(writer)


def _after_copying(snapshot: Snapshot, writer: CheckpointWriter) -> WeightUpdate:
    """Return an `update` of TrainingStep.train that first waits until a publication has copied the weights,
    and copies what a checkpoint has yet to write."""

    def update(change: Callable[[], None]) -> None:
        snapshot.finished()
        writer.copy_unwritten()
        change()

    return update


def _train(
    command: pb.TrainBatch, batch: Sequence[bytes], training: step.TrainingStep, update: WeightUpdate
) -> None:
    groups = [codec.group_from_proto(types_pb2.Group.FromString(group)) for group in batch]
    share = command.unvaried_share if command.HasField("unvaried_share") else None
    try:
        training.train(groups, version=command.version, update=update, unvaried_share=share)
    except gradients.Abandoned:
        return


def _settle(writer: CheckpointWriter) -> None:
    try:
        writer.settle()
    except OSError:
        return  # rank 0 reports the same failure
