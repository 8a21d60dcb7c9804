"""The ranks of the learner that send weights: rank 0 alone, or each rank the part that it has.

    Publisher ─▶ Senders ─┬─▶ OwnWeights of rank 0
                          └─▶ Commands ═══ store of the ranks ═══ Sender ─▶ OwnWeights of rank 1 …

The ranks send one after the other, because a rollout receives with the bandwidth of its own network only.
Copying, comparing and digesting happen on all ranks at once, and no rank has memory for all weights. A
command may run beside training: it travels over the store, in a thread of its own on every rank.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from slipstream.learner.broadcast.own_weights import Order, OwnWeights
from slipstream.records import NO_VERSION
from slipstream.v1 import learner_pb2 as pb
from slipstream.weights.group import Rendezvous, WeightGroup
from slipstream.weights.manifest import Manifest, joined, manifest_from_proto
from slipstream.weights.rendezvous_message import rendezvous_to_proto
from slipstream.weights.threads import in_thread

Progress = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """The layout of one broadcast; with a base, of the changes since that version."""

    manifest: Manifest
    base: int = NO_VERSION
    key: bytes = field(default=b"", repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.nbytes for tensor in self.manifest.tensors)

    @property
    def kind(self) -> str:
        """Whether the tensors are the `full` version or a `delta`."""
        return "full" if self.base == NO_VERSION else "delta"


class Others(Protocol):
    """The other ranks that send."""

    ranks: Sequence[int]

    def ask(
        self, commands: Sequence[pb.SenderCommand], ranks: Sequence[int], progress: Progress
    ) -> list[pb.SenderReport]:
        """Send a command to each of these ranks; block until all have answered.

        Errors: TransferError for a group or a broadcast that failed there; RankFailed, RankLost.
        """

    def end(self) -> None:
        """End `ask`, by RankLost."""


class NoOthers:
    """Rank 0 sends everything."""

    ranks: Sequence[int] = ()

    def ask(
        self, commands: Sequence[pb.SenderCommand], ranks: Sequence[int], progress: Progress
    ) -> list[pb.SenderReport]:
        """Return no reports."""
        return []

    def end(self) -> None:
        """Do nothing."""


class Senders:
    """What all senders do together, called on rank 0. Its methods block.

    Errors of every method: RankFailed and RankLost of another sender.
    """

    def __init__(self, own: OwnWeights, others: Others | None = None) -> None:
        self._own = own
        self._others = others or NoOthers()
        self.size = 1 + len(self._others.ranks)
        layouts = [report.manifest for report in self._ask(pb.SenderCommand(lay_out=pb.LayOut()))]
        self.full = Broadcast(manifest=self._joined(own.manifest, layouts))

    def close(self, version: int) -> float | None:
        """Attribute the weights to a version; return the share that changed: see ChangeLog.close."""
        answers = self._beside(pb.SenderCommand(close=pb.CloseVersion(version=version)))
        own = self._own.close(version)
        reports = answers.result()
        if own is None or not all(report.HasField("changed") for report in reports):
            return None
        changed = own * self._own.elements + sum(each.changed * each.elements for each in reports)
        return changed / max(1, self._own.elements + sum(each.elements for each in reports))

    def choose(self, base: int, key: bytes) -> Broadcast:
        """Return what to send to rollouts that keep the version `base` or later ones."""
        full = replace(self.full, key=key)
        if base == NO_VERSION:
            return full
        answers = self._beside(pb.SenderCommand(choose=pb.ChooseBase(base_version=base)))
        own = self._own.choose(base)
        layouts = [report.manifest for report in answers.result() if report.HasField("manifest")]
        if own is None or len(layouts) < self.size - 1:
            return full
        return Broadcast(manifest=self._joined(own, layouts), base=base, key=key)

    def form(
        self,
        rendezvous: Rendezvous,
        nonces: Sequence[bytes],
        give_up: Callable[[], None],
        progress: Progress,
    ) -> WeightGroup:
        """Form the group of an epoch, to which each other sender shows its nonce. Errors: TransferError.

        give_up: called if another sender fails first, so that the members stop waiting for it.
        """
        commands = [
            pb.SenderCommand(form=rendezvous_to_proto(replace(rendezvous, nonce=each))) for each in nonces
        ]
        others = in_thread(
            lambda: self._others.ask(commands, self._others.ranks, progress), "forming of other senders"
        )
        others.add_done_callback(lambda done: give_up() if done.exception() else None)
        own = in_thread(partial(self._own.form, rendezvous, progress), "forming of the own group")
        wait([others])
        wait([own])
        if others.exception() is not None and own.exception() is None:
            own.result().close()
        others.result()
        return own.result()

    def send(self, group: WeightGroup, version: int, broadcast: Broadcast, progress: Progress) -> None:
        """Broadcast, one sender after the other; `progress` after each bucket. Errors: TransferError."""
        order = Order(version=version, delta=broadcast.base != NO_VERSION, key=broadcast.key)
        self._own.send(group, order, progress)
        for rank in self._others.ranks:
            first = broadcast.manifest.first_bucket_of(rank)
            command = pb.SendWeights(version=version, delta=order.delta, key=order.key, first_bucket=first)
            self._others.ask([pb.SenderCommand(send=command)], [rank], progress)

    def end(self) -> None:
        """Stop waiting for other senders."""
        self._others.end()

    def _ask(self, command: pb.SenderCommand) -> list[pb.SenderReport]:
        """Send a command to all other senders."""
        return self._others.ask([command] * len(self._others.ranks), self._others.ranks, lambda: None)

    def _beside(self, command: pb.SenderCommand) -> Future[list[pb.SenderReport]]:
        """Begin to ask all other senders."""
        return in_thread(lambda: self._ask(command), "question to other senders")

    def _joined(self, own: Manifest, others: Sequence[pb.Manifest]) -> Manifest:
        return joined([own, *map(manifest_from_proto, others)]) if others else own
