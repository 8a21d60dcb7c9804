"""Where the published weights changed from version to version, on the learner's side.

The log keeps positions: what a rollout lacks are the present values at all positions that changed since its
version. So one delta serves rollouts of several versions, down to the oldest of them, and a rollout that
missed some versions needs no full load. The newest version keeps its values as well, so that a delta from the
one before, which most rollouts need, is packed without another pass over the weights.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.config.sections.services import LARGEST_DELTA, LOG_SHARE
from slipstream.weights import delta
from slipstream.weights.manifest import Manifest, plan
from slipstream.weights.threads import in_pool, results

MOST_VERSIONS = 32
BUCKETS, LEAST_BUCKET_BYTES = 16, 1 << 20
"""A delta has about so many buckets, if they are not smaller: one is packed while another one travels.
With 8, 30 MiB took about 10 ms longer at 1 Gb/s."""
MOST_RUNNING_BYTES = 256 << 20
"""Size of the next values that are compared at once, so that not all of them have to be in host memory."""


@dataclass(slots=True)
class VersionChanges:
    """The changes between a version and the one before it.

    A tensor with None changed in more than a fifth of its elements (DENSE_SHARE).
    """

    version: int = -1
    gaps: dict[str, delta.Gaps | None] = field(default_factory=dict)
    values: dict[str, NDArray[np.generic]] = field(default_factory=dict)
    """Of the newest version only, as long as the weights have them, and of tensors that changed little."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        gaps = sum(gaps.nbytes for gaps in self.gaps.values() if gaps is not None)
        return gaps + sum(values.nbytes for values in self.values.values())


@dataclass(frozen=True, slots=True)
class Comparison:
    """A weight that is being compared with its next value. nbytes: size of the next value."""

    changed: Callable[[], delta.Changed | None]
    nbytes: int


class ChangeLog:
    """The changes of the last versions. `weights`: by name, in host memory, changed only by `update`."""

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._weights = weights
        self._pending = VersionChanges()
        self._running: dict[str, Comparison] = {}
        self._versions: deque[VersionChanges] = deque()
        self._oldest: int | None = None
        """The oldest version whose later changes are all in the log."""
        self._digests: dict[str, int] = {}

    def update(self, name: str, new: torch.Tensor) -> None:
        """Begin to give a weight its next value, and to note what changed, on several threads.

        new: contiguous, in host memory, of the weight's dtype, or float32 for a weight in bfloat16. It must
        not change before `settle`.
        """
        if self._versions:
            self._versions[-1].values.clear()  # the weights have other values from now on
        while name in self._running or self._running_bytes() > MOST_RUNNING_BYTES:
            self._settle_one()
        self._running[name] = Comparison(delta.take_over(self._weights[name], new), new.nbytes)

    def settle(self) -> None:
        """Wait until nothing reads next values any more. Errors: the first one of the comparisons."""
        failure: Exception | None = None
        while self._running:
            try:
                self._settle_one()
            except Exception as error:  # of memory, for example
                failure = failure or error
        if failure is not None:
            raise failure

    def _running_bytes(self) -> int:
        return sum(each.nbytes for each in self._running.values())

    def _settle_one(self) -> None:
        name = next(iter(self._running))
        comparison = self._running.pop(name)
        gaps, values = None, None  # a failure may have changed any element
        try:
            changed = comparison.changed()
            if changed is not None:
                gaps, values = changed.gaps, changed.values
        finally:
            if gaps is None or gaps.count:
                self._digests.pop(name, None)
            if name in self._pending.gaps:  # a second update of one version
                gaps, values = delta.union((self._pending.gaps[name], gaps)), None
                self._pending.values.pop(name, None)
            self._pending.gaps[name] = gaps
            if values is not None:
                self._pending.values[name] = values

    def close(self, version: int) -> float | None:
        """Attribute the updates since the last call to a version; return the share of elements that changed.

        All elements of a tensor count if more than a fifth of them changed. None for the first version, and
        if nothing was updated since the last call.
        """
        self.settle()
        pending, self._pending = self._pending, VersionChanges()
        if self._oldest is None:
            self._oldest = version
            return None
        if not pending.gaps:
            return None
        pending.version = version
        self._versions.append(pending)
        most = LOG_SHARE * sum(weight.nbytes for weight in self._weights.values())
        while len(self._versions) > MOST_VERSIONS or sum(each.nbytes for each in self._versions) > most:
            self._oldest = self._versions.popleft().version
        sizes = {name: weight.numel() for name, weight in self._weights.items()}
        changed = sum(sizes[name] if gaps is None else gaps.count for name, gaps in pending.gaps.items())
        return changed / max(1, sum(sizes.values()))

    def since(self, base: int, full: Manifest, *, bucket_bytes: int) -> "Delta | None":
        """Return the update of rollouts that have version `base` or a later one.

        `full`: the layout of a full version. bucket_bytes: at most so many in a bucket. None if the log does
        not reach back to `base`, or if a full version would be hardly larger.
        """
        if self._oldest is None or base < self._oldest:
            return None
        missed = [each for each in self._versions if each.version > base]
        gaps = {spec.name: self._smallest(spec.name, missed) for spec in full.tensors}
        sizes = {name: delta.change_bytes(self._weights[name], packed) for name, packed in gaps.items()}
        total = sum(sizes.values())
        if total > LARGEST_DELTA * full.nbytes:
            return None
        manifest = plan(
            [(name, (size,)) for name, size in sizes.items()],
            dtype=torch.uint8,
            bucket_bytes=min(bucket_bytes, max(total // BUCKETS, LEAST_BUCKET_BYTES)),
            model_fingerprint=full.model_fingerprint,
        )
        return Delta(self, base, manifest, gaps)

    def _smallest(self, name: str, missed: Sequence[VersionChanges]) -> delta.Gaps | None:
        """Return where a weight changed in these versions; None if the whole weight takes fewer bytes."""
        weight, gaps = self._weights[name], delta.union(each.gaps[name] for each in missed)
        fewer = delta.change_bytes(weight, gaps) < delta.change_bytes(weight, None)
        return gaps if fewer or not weight.numel() else None

    def change(self, name: str, gaps: delta.Gaps | None) -> torch.Tensor:
        """Return the change of a weight as it travels, with the digest of the present weight."""
        values = None
        if self._versions and gaps is self._versions[-1].gaps.get(name):
            values = self._versions[-1].values.get(name)
        return delta.change_of(self._weights[name], gaps, self.digest(name), values)

    def digest(self, name: str) -> int:
        """Return the digest of the present weight. Several threads may call."""
        if name not in self._digests:
            self._digests[name] = delta.digest(self._weights[name])
        return self._digests[name]


class Delta(Mapping[str, torch.Tensor]):
    """The changes since version `base` by name, each packed when it is read; `manifest` is their layout."""

    def __init__(
        self, log: ChangeLog, base: int, manifest: Manifest, gaps: Mapping[str, delta.Gaps | None]
    ) -> None:
        self._log = log
        self.base = base
        self.manifest = manifest
        self._gaps = gaps

    def digest(self) -> None:
        """Compute the digests of all weights on several threads, so that packing is faster."""
        results(in_pool(self._log.digest, self._gaps))

    def __getitem__(self, name: str) -> torch.Tensor:
        """Pack the change of a weight, [bytes] uint8. Several threads may call."""
        return self._log.change(name, self._gaps[name])

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._gaps)

    def __len__(self) -> int:
        """Return the number of weights."""
        return len(self._gaps)
