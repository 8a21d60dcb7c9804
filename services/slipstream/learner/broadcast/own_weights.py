"""The weights that one rank of the learner sends: all of them if it is the only sender."""

from collections.abc import Callable
from dataclasses import dataclass

from slipstream.config import WeightsConfig
from slipstream.learner.broadcast.snapshot import Snapshot
from slipstream.records import NO_VERSION
from slipstream.weights.changes import Delta
from slipstream.weights.group import Rendezvous, TransferError, WeightGroup, form_group
from slipstream.weights.manifest import Manifest, plan
from slipstream.weights.transfer import BUFFERS, Buffers, place, send

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a sender sends: a version in full, or the delta that it chose last; its buckets are counted from
    `first_bucket` on. key: for encryption."""

    version: int
    delta: bool = False
    key: bytes = b""
    first_bucket: int = 0


class OwnWeights:
    """A rank's weights, in the dtype of the broadcast, and how they are laid out.

    Their values may change between two publications, but not during one. If they are broadcast from host
    memory, they move to the buckets from which they are sent (transfer.place).
    """

    def __init__(self, snapshot: Snapshot, *, config: WeightsConfig, model_fingerprint: str) -> None:
        """`snapshot`: has the weights, from its first copy on, and their changes; without changes every
        version is sent in full."""
        self._rank, self._device, self._shared = snapshot.rank, snapshot.device, snapshot.shared
        self._tensors, self._changes = snapshot.tensors, snapshot.changes
        self._delta: Delta | None = None
        self._bucket_bytes = int(config.bucket_mib * MIB)
        self.manifest = plan(
            [(name, tuple(tensor.shape)) for name, tensor in self._tensors.items()],
            dtype=snapshot.dtype,
            bucket_bytes=self._bucket_bytes,
            model_fingerprint=model_fingerprint,
            parts=snapshot.parts,
        )
        in_host_memory = self._device.type == "cpu"
        self._of_deltas = Buffers(self._device)
        self._buffers = Buffers(self._device, count=None if in_host_memory else BUFFERS)
        if in_host_memory:
            place(self._tensors, self.manifest, self._buffers)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return sum(tensor.numel() for tensor in self._tensors.values())

    def close(self, version: int) -> float | None:
        """Attribute the weights to a version; return the share that changed: see ChangeLog.close."""
        return None if self._changes is None else self._changes.close(version)

    def choose(self, base: int) -> Manifest | None:
        """Choose the changes since a version to be sent; return their layout.

        None if the weights have to be sent in full, to rollouts that keep `base` or later versions.
        """
        self._delta = None
        if self._changes is not None and base != NO_VERSION:
            self._delta = self._changes.since(base, self.manifest, bucket_bytes=self._bucket_bytes)
        if self._delta is not None and self._shared:
            self._delta.digest()  # all ranks do so at once, and send one after the other
        return None if self._delta is None else self._delta.manifest

    def form(self, rendezvous: Rendezvous, progress: Callable[[], None]) -> WeightGroup:
        """Form the group of an epoch. Errors: TransferError."""
        return form_group(rendezvous, device=self._device, progress=progress)

    def send(self, group: WeightGroup, order: Order, progress: Callable[[], None]) -> None:
        """Broadcast; `progress` after each bucket. Errors: TransferError."""
        manifest, tensors, buffers = self.manifest, self._tensors, self._buffers
        delta = self._delta if order.delta else None
        if order.delta and delta is None:
            raise TransferError("no delta was chosen")
        send(
            group,
            manifest if delta is None else delta.manifest,
            tensors if delta is None else delta,
            version=order.version,
            device=self._device,
            key=order.key,
            buffers=buffers if delta is None else self._of_deltas,
            sender=self._rank,
            first_bucket=order.first_bucket,
            progress=progress,
        )
