"""Commands of rank 0 to the other ranks that send weights, over the store of the ranks.

    rank 0      command/n ─▶ … wait for report/n/1, report/n/2 …
    rank r      poll command/n ─▶ execute ─▶ report/n/r

A rank counts what it has done in `progress`, so that rank 0 can tell a slow broadcast from one that is stuck.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from slipstream.config import WeightsConfig
from slipstream.learner.broadcast.own_weights import Order, OwnWeights
from slipstream.learner.broadcast.snapshot import Snapshot
from slipstream.learner.policy.model import Policy
from slipstream.learner.ranks.ranks import Alone, RankLost, TorchRanks
from slipstream.rpc.errors import RankFailed
from slipstream.telemetry.logs import Log
from slipstream.v1 import learner_pb2 as pb
from slipstream.weights.group import TransferError, WeightGroup
from slipstream.weights.last_deadline import or_exit
from slipstream.weights.manifest import manifest_to_proto
from slipstream.weights.rendezvous_message import rendezvous_from_proto

PREFIX = "slipstream/senders"
PROGRESS = f"{PREFIX}/progress"
POLL_SECONDS = 0.01
IDLE_SECONDS, IDLE_POLL_SECONDS = 5.0, 0.05
"""A rank that got no command for a while looks for the next one less often."""
PATIENCE = 1.5
"""Timeouts after which a rank without progress is lost: more than that of one wait, and less than LAST, after
which the whole publication is stuck for a reason that nobody knows."""


def every_rank_sends(policy: Policy, config: WeightsConfig, *, ranks: int) -> bool:
    """Return whether each rank of several sends its own part of the weights.

    Otherwise rank 0 gathers them: adapters, which are small or merged, and versions that rollouts receive in
    a pause, in which they have no memory to put parts together.
    """
    elements: int = sum(parameter.numel() for parameter in policy.model.parameters())
    version_bytes = elements * policy.dtype.itemsize
    return config.every_rank_sends(version_bytes, ranks=ranks, adapted=policy.adapted)


def commands_to_senders(
    ranks: Alone | TorchRanks, snapshot: Snapshot, config: WeightsConfig
) -> "SenderCommands | None":
    """Return rank 0's connection to the other ranks that send; None if it sends everything."""
    if not snapshot.shared or isinstance(ranks, Alone):
        return None
    return SenderCommands(
        ranks.store(), size=ranks.size, snapshot=snapshot, timeout_seconds=config.timeout_seconds
    )


@contextmanager
def sending(
    ranks: TorchRanks, snapshot: Snapshot, config: WeightsConfig, *, model_fingerprint: str, log: Log
) -> Iterator[None]:
    """Send this rank's part of the weights at rank 0's command, if every rank sends."""
    if not snapshot.shared:
        yield
        return
    sender = Sender(
        ranks.store(),
        rank=ranks.rank,
        snapshot=snapshot,
        own=lambda: OwnWeights(snapshot, config=config, model_fingerprint=model_fingerprint),
        timeout_seconds=config.timeout_seconds,
        log=log,
    )
    sender.start()
    try:
        yield
    finally:
        sender.close()


class SenderCommands:
    """Rank 0's end. See Others."""

    def __init__(self, store: Any, *, size: int, snapshot: Snapshot, timeout_seconds: float) -> None:
        """`store`: a connection of its own to the store of the ranks."""
        self.ranks: Sequence[int] = range(1, size)
        self._store = store
        self._snapshot = snapshot
        self._seconds = PATIENCE * timeout_seconds
        self._progress = 0
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def ask(
        self, commands: Sequence[pb.SenderCommand], ranks: Sequence[int], progress: Callable[[], None]
    ) -> list[pb.SenderReport]:
        """Send a command to each of these ranks; block until all have answered.

        Errors: TransferError for a group or a broadcast that failed there; RankFailed for any other error;
        RankLost for a rank that makes no progress, and after `end`.
        """
        with self._lock:
            keys = [self._tell(rank, command) for rank, command in zip(ranks, commands, strict=True)]
            reports = [self._report(key, rank, progress) for key, rank in zip(keys, ranks, strict=True)]
        for rank, report in zip(ranks, reports, strict=True):
            if report.fault:
                raise RankFailed(f"rank {rank} of the learner cannot send its weights: {report.fault}")
        for rank, report in zip(ranks, reports, strict=True):
            if report.failure:
                raise TransferError(f"rank {rank} of the learner: {report.failure}")
        return reports

    def end(self) -> None:
        """End all waits for reports."""
        self._ended.set()

    def _tell(self, rank: int, command: pb.SenderCommand) -> str:
        """Give a rank a command; return the key of its report."""
        told = pb.SenderCommand(copies=self._snapshot.copies)
        told.MergeFrom(command)
        number = self._store.add(f"{PREFIX}/{rank}/number", 1)
        self._store.set(f"{PREFIX}/{rank}/command/{number}", told.SerializeToString())
        return f"{PREFIX}/{rank}/report/{number}"

    def _report(self, key: str, rank: int, progress: Callable[[], None]) -> pb.SenderReport:
        """Wait for a report. Errors: RankLost."""
        deadline = time.monotonic() + self._seconds
        while not self._store.check([key]):
            if self._progressed():
                progress()
                deadline = time.monotonic() + self._seconds
            if time.monotonic() > deadline:
                raise RankLost(
                    f"rank {rank} of the learner has not executed a command about weights in "
                    f"{self._seconds:g} s"
                )
            if self._ended.wait(POLL_SECONDS):
                raise RankLost(f"the learner ended while rank {rank} had a command about weights")
        report = pb.SenderReport.FromString(self._store.get(key))
        self._store.delete_key(key)
        return report

    def _progressed(self) -> bool:
        """Return whether a rank has done something since the last call."""
        before, self._progress = self._progress, self._store.add(PROGRESS, 0)
        return self._progress != before


class Sender:
    """Another rank's end: executes commands in a thread, which ends with the process."""

    def __init__(
        self,
        store: Any,
        *,
        rank: int,
        snapshot: Snapshot,
        own: Callable[[], OwnWeights],
        timeout_seconds: float,
        log: Log,
    ) -> None:
        """`store`: a connection of its own. `own`: makes this rank's weights, after the first copy."""
        self._store = store
        self._rank = rank
        self._snapshot = snapshot
        self._make_own = own
        self._own: OwnWeights | None = None
        self._timeout = timeout_seconds
        self._log = log
        self._group: WeightGroup | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sender of weights")

    def start(self) -> None:
        """Begin to execute commands."""
        self._thread.start()

    def close(self) -> None:
        """Leave the group and end."""
        self._ended.set()
        if self._group is not None:
            self._group.close()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._obey()
        except RuntimeError as error:  # the store is gone with rank 0, of which `follow` hears as well
            self._log.error("sends no more weights", error=str(error))
        finally:
            self._leave()

    def _obey(self) -> None:
        """Execute commands until `close`. Errors: RuntimeError of the store."""
        number, busy = 1, time.monotonic()
        while True:
            idle = time.monotonic() - busy > IDLE_SECONDS
            if self._ended.wait(IDLE_POLL_SECONDS if idle else POLL_SECONDS):
                return
            key = f"{PREFIX}/{self._rank}/command/{number}"
            if not self._store.check([key]):
                continue
            command = pb.SenderCommand.FromString(self._store.get(key))
            self._store.delete_key(key)
            report = self._executed(command)
            self._store.set(f"{PREFIX}/{self._rank}/report/{number}", report.SerializeToString())
            number, busy = number + 1, time.monotonic()

    def _executed(self, command: pb.SenderCommand) -> pb.SenderReport:
        """Execute a command; what fails is in the report."""
        seconds = self._timeout * max(1, command.form.senders)  # their groups are formed one after the other
        try:
            with or_exit(seconds, f"rank {self._rank} of the learner, which sends weights,") as progress:

                def done() -> None:
                    progress()
                    self._store.add(PROGRESS, 1)

                self._await_copies(command.copies, done)
                return self._execute(command, done)
        except TransferError as error:
            return pb.SenderReport(failure=str(error))
        except Exception as error:  # rank 0 ends the learner with it
            self._log.error("cannot send weights", error=f"{type(error).__name__}: {error}")
            return pb.SenderReport(fault=f"{type(error).__name__}: {error}")

    def _await_copies(self, copies: int, progress: Callable[[], None]) -> None:
        """Wait until this rank has copied its weights as often as rank 0. Errors: those of the copy."""
        while self._snapshot.copies < copies:
            if self._ended.wait(POLL_SECONDS):
                raise RankLost("this rank ended before it had copied its weights")
        while self._snapshot.copying:
            progress()
            time.sleep(POLL_SECONDS)
        self._snapshot.wait()

    def _execute(self, command: pb.SenderCommand, progress: Callable[[], None]) -> pb.SenderReport:
        if self._own is None:
            self._own = self._make_own()
        own = self._own
        match command.WhichOneof("command"):
            case "lay_out":
                return pb.SenderReport(manifest=manifest_to_proto(own.manifest))
            case "close":
                return pb.SenderReport(changed=own.close(command.close.version), elements=own.elements)
            case "choose":
                layout = own.choose(command.choose.base_version)
                return pb.SenderReport(manifest=None if layout is None else manifest_to_proto(layout))
            case "form":
                self._leave()
                self._group = own.form(rendezvous_from_proto(command.form, sender=self._rank), progress)
            case "send":
                if self._group is None:
                    raise TransferError("no group was formed")
                own.send(self._group, _order(command.send), progress)
        return pb.SenderReport()

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()


def _order(message: pb.SendWeights) -> Order:
    return Order(
        version=message.version, delta=message.delta, key=message.key, first_bucket=message.first_bucket
    )
