"""The version that arrived last, in the host memory of an engine's process: a delta changes this copy.

The engine's own parameters have another layout (fused, sharded, packed for a kernel), so they are loaded from
the copy, by the model's own loaders.

Parts of tensors, of a learner whose ranks each send what they have, are put together here.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from slipstream.records import NO_VERSION
from slipstream.weights.delta import Change, DamagedDelta, digest
from slipstream.weights.group import TransferError, WeightGroup
from slipstream.weights.joined_tensors import JoinedTensors
from slipstream.weights.last_deadline import no_progress
from slipstream.weights.manifest import Manifest
from slipstream.weights.threads import in_pool, results
from slipstream.weights.transfer import Buffers, receive


@dataclass(frozen=True, slots=True)
class TensorChange:
    """What is new in a tensor, whose positions are counted from its element `first` on."""

    tensor: str
    first: int
    change: Change


@dataclass(frozen=True, slots=True)
class Difference:
    """What the last delta changed in the copy. since: the copy's `mark` before it."""

    since: object
    changes: Sequence[TensorChange]


class BaseCopy:
    """Invariant: `tensors` are exactly the learner's of `version`, or there are none.

    One exception: after a delta whose transfer failed, some tensors may have the version of that delta. A
    delta that begins at `version` or before has the values at all positions that changed since, so it leads
    from both to the same bytes.
    `mark`: another object with each version and after each failure, unlike the number of the version, which a
    learner that was started again gives to other weights.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.version = NO_VERSION
        self.mark = object()
        self._newest = NO_VERSION
        """The version of a delta whose transfer failed, or `version`."""
        self._difference: Difference | None = None
        self._arrived: dict[str, torch.Tensor] = {}
        """The same memory by the names under which it travels: tensors, or parts of them."""
        self._first: dict[str, tuple[str, int]] = {}
        """Of each part that travels: the tensor, and the part's first element in it."""
        self._digests: dict[str, int] = {}
        self._memory = Buffers(torch.device("cpu"), count=None)
        self._joined = JoinedTensors()

    def forget(self) -> None:
        """Give up the copy and its memory."""
        self._begin_anew()
        self._memory.forget()
        self._joined.forget()

    def _begin_anew(self) -> None:
        """Give up the copy, and keep its memory for the next full version."""
        self.tensors, self._arrived, self._digests, self.version = {}, {}, {}, NO_VERSION
        self._first, self._difference = {}, None

    def take_difference(self) -> Difference | None:
        """Return what the last delta changed, once; None after a full version."""
        difference, self._difference = self._difference, None
        return difference

    def receive(
        self,
        group: WeightGroup,
        manifest: Manifest,
        *,
        version: int,
        base: int,
        device: torch.device,
        key: bytes = b"",
        progress: Callable[[], None] = no_progress,
    ) -> None:
        """Receive a full version, or with a `base` a delta, and bring the copy to it.

        device: on which buckets arrive. key: for encryption. Errors: TransferError. The copy is lost by an
        error in a full version, whose bytes take its place, and by a delta that does not lead to the
        learner's bytes. The tensors of a delta are changed while later ones travel.
        """
        full, in_parts = base == NO_VERSION, manifest.in_parts
        self._difference = None
        if full:
            self._begin_anew()
            (self._memory if in_parts else self._joined).forget()  # the learner may have had the other form
        else:
            self._check(version, base)
        in_place = full and not in_parts and not key and device.type == "cpu"  # else buckets are copied
        arriving = receive(
            group,
            manifest,
            version=version,
            device=device,
            key=key,
            buffers=self._memory if in_place else Buffers(device) if in_parts else None,
            progress=progress,
        )
        if in_parts:
            self._join(manifest, arriving)
        elif full:
            self._arrived = {name: tensor.to("cpu") for bucket in arriving for name, tensor in bucket}
            self.tensors = self._arrived
        else:
            self._difference = Difference(self.mark, self._change(version, manifest, arriving))
        self.version, self._newest, self.mark = version, version, object()

    def _join(self, manifest: Manifest, arriving: Iterable[list[tuple[str, torch.Tensor]]]) -> None:
        """Put parts together as they arrive. Errors: TransferError, also if a row is missing."""
        specs = {spec.name: spec for spec in manifest.tensors}
        self._joined.begin()
        for bucket in arriving:
            for name, tensor in bucket:
                self._arrived[name] = self._joined.put(specs[name], tensor)
                if (part := specs[name].part) is not None:
                    self._first[name] = part.tensor, part.first_row * math.prod(tensor.shape[1:])
        self.tensors = self._joined.finish(manifest.tensors)

    def _check(self, version: int, base: int) -> None:
        """Refuse a delta that begins after the copy's version, or ends before it. Errors: TransferError."""
        if not base <= self.version <= version or self.version == NO_VERSION or self._newest > version:
            kept = "no version" if self.version == NO_VERSION else f"version {self.version}"
            kept += f" with a part of version {self._newest}" if self._newest > self.version else ""
            raise TransferError(f"a delta from version {base} to {version} does not fit: {kept} is kept here")

    def _change(
        self, version: int, manifest: Manifest, arriving: Iterable[list[tuple[str, torch.Tensor]]]
    ) -> Sequence[TensorChange]:
        """Bring the copy to a version, compare every tensor with the learner's digest; return what is new.

        arriving: (name, [bytes] uint8) of each tensor or part. All of it is received in any case, because
        others receive the same broadcast. Errors: TransferError; if the delta is damaged, there is no copy
        then.
        """
        before, self.version, self._newest = self.version, NO_VERSION, version
        changes: list[TensorChange] = []
        different = sorted({spec.name for spec in manifest.tensors} ^ self._arrived.keys())
        damage: Exception | None = None
        if different:
            damage = DamagedDelta(f"it has other tensors: {', '.join(different[:5])}")
        try:
            for bucket in arriving:
                try:
                    if damage is None:
                        applying = in_pool(lambda change: self._apply(*change), bucket, background=True)
                        changes += results(applying)
                except Exception as error:  # of memory, for example
                    damage = error
            if damage is not None:
                raise TransferError(f"the delta of version {version} does not fit: {damage}") from damage
        finally:
            self.version, self.mark = before, object()
            if damage is not None:
                self.forget()
        return changes

    def _apply(self, name: str, packed: torch.Tensor) -> TensorChange:
        """Errors: DamagedDelta if the tensor is not the learner's afterwards."""
        tensor = self._arrived[name]
        change = Change.read(packed.to("cpu").numpy(), tensor)
        if change.changes:
            self._digests.pop(name, None)
            change.apply(tensor)
        if name not in self._digests:
            self._digests[name] = digest(tensor)
        if self._digests[name] != change.digest:
            raise DamagedDelta(f"{name} has another digest than the learner's")
        return TensorChange(*self._first.get(name, (name, 0)), change)
