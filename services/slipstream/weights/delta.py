"""The changed elements of a tensor between two versions, and their form on the wire.

At the learning rates of reinforcement learning, a step of the optimizer changes few of the values that a
policy has in bfloat16, because most changes are smaller than half the distance between two such values: 1 to
3 % of the elements in arXiv:2602.03839.

    change of a tensor     header: kind, count, bytes of the gaps, digest of the whole result   4 x int64
                           values: of the changed elements, in order; of all for kind FULL
                           gaps: unchanged elements before each changed one, one byte each

A gap of 255 or more begins with one byte 255 for each 255 elements. All comparisons are of bits, so that a
NaN and a negative zero arrive as they are.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

HEADER_WORDS = 4
HEADER_BYTES = 8 * HEADER_WORDS
LONG = 255
CHUNK_ELEMENTS = 1 << 20
SAMPLED_STRIDE = 61
"""A first look compares each 61st element: a tensor that changed everywhere is not compared as a whole."""
DENSE_SHARE = 0.2
"""Share of changed elements above which a tensor travels as a whole."""
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Positions = NDArray[np.int64]
"""Positions of elements in a flat tensor, in ascending order."""


class Kind(IntEnum):
    """The parts of a tensor that a change carries."""

    UNCHANGED = 0
    SPARSE = 1
    FULL = 2


@dataclass(frozen=True, slots=True)
class Gaps:
    """Positions of changed elements, packed into about one byte each."""

    packed: NDArray[np.uint8]
    count: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.packed.nbytes


NO_GAPS = Gaps(np.empty(0, np.uint8), 0)


class DamagedDelta(ValueError):
    """A delta is malformed, or does not lead to the learner's tensors."""


def bits(tensor: torch.Tensor) -> NDArray[np.generic]:
    """Return the elements of a contiguous tensor in host memory as flat integers, without a copy."""
    elements: NDArray[np.generic] = tensor.view(-1).view(INTEGERS[tensor.element_size()]).numpy()
    return elements


def changed_positions(old: torch.Tensor, new: torch.Tensor) -> Positions | None:
    """Return where two tensors of one shape and dtype in host memory differ; None above DENSE_SHARE."""
    old_N, new_N = bits(old), bits(new)
    sampled = old_N[::SAMPLED_STRIDE] != new_N[::SAMPLED_STRIDE]
    if np.count_nonzero(sampled) > 2 * DENSE_SHARE * sampled.size:
        return None
    chunks = [np.empty(0, np.int64)]
    left = int(DENSE_SHARE * old_N.size)
    for start in range(0, old_N.size, CHUNK_ELEMENTS):
        end = start + CHUNK_ELEMENTS
        changed = np.flatnonzero(old_N[start:end] != new_N[start:end]) + start
        left -= changed.size
        if left < 0:
            return None
        chunks.append(changed)
    return np.concatenate(chunks)


def pack(positions: Positions) -> Gaps:
    """Pack ascending positions without repetition."""
    if not positions.size:
        return NO_GAPS
    gaps = np.diff(positions, prepend=-1) - 1
    long = gaps // LONG
    ends = np.cumsum(long) + np.arange(gaps.size)
    packed = np.full(int(ends[-1]) + 1, LONG, np.uint8)
    packed[ends] = gaps - LONG * long
    return Gaps(packed, positions.size)


def unpack(gaps: Gaps) -> Positions:
    """Return the positions. Errors: DamagedDelta if they are not `gaps.count`."""
    ends = gaps.packed != LONG
    before: Positions = np.cumsum(gaps.packed, dtype=np.int64)[ends]
    if before.size != gaps.count or (gaps.packed.size and not ends[-1]):
        raise DamagedDelta(f"{before.size} positions instead of {gaps.count}")
    positions: Positions = before + np.arange(gaps.count)
    return positions


def union(several: Iterable[Gaps | None]) -> Gaps | None:
    """Return the positions that are in any of these; None if one of them is None."""
    positions: list[Gaps] = []
    for gaps in several:
        if gaps is None:
            return None
        positions.append(gaps)
    if len(positions) < 2:
        return positions[0] if positions else NO_GAPS
    ascending = np.sort(np.concatenate([unpack(gaps) for gaps in positions]))  # np.unique is slow: it hashes
    return pack(ascending[np.diff(ascending, prepend=-1) > 0])


def digest(tensor: torch.Tensor) -> int:
    """Return the XXH3 digest of a contiguous tensor in host memory, as a signed number of 64 bits."""
    number = xxhash.xxh3_64_intdigest(bits(tensor).data)
    return number - (1 << 64) if number >> 63 else number


def change_bytes(tensor: torch.Tensor, gaps: Gaps | None) -> int:
    """Return the size of a change on the wire in bytes; with gaps None, that of the whole tensor."""
    if gaps is None:
        return HEADER_BYTES + tensor.nbytes
    return HEADER_BYTES + gaps.count * tensor.element_size() + gaps.nbytes


def change_of(tensor: torch.Tensor, gaps: Gaps | None, tensor_digest: int) -> torch.Tensor:
    """Return a change as it travels, [bytes] uint8. `gaps`: of the changed elements; None sends all."""
    if gaps is None:
        kind, values, packed = Kind.FULL, bits(tensor), NO_GAPS.packed
    else:
        kind = Kind.SPARSE if gaps.count else Kind.UNCHANGED
        values, packed = bits(tensor)[unpack(gaps)], gaps.packed
    header = np.array([kind, values.size, packed.size, tensor_digest], np.int64)
    return torch.from_numpy(np.concatenate([header.view(np.uint8), values.view(np.uint8), packed]))


@dataclass(frozen=True, slots=True)
class Change:
    """A change that arrived: what is new in one tensor, and the digest of the whole tensor after it."""

    kind: Kind
    values: NDArray[np.uint8]
    gaps: Gaps
    digest: int

    @classmethod
    def read(cls, source: NDArray[np.uint8], tensor: torch.Tensor) -> "Change":
        """Read the change of a tensor like this one. Errors: DamagedDelta."""
        if source.size < HEADER_BYTES:
            raise DamagedDelta(f"{source.size} bytes are no change")
        kind, count, packed, expected = source[:HEADER_BYTES].view(np.int64).tolist()
        end = HEADER_BYTES + count * tensor.element_size()
        if kind not in set(Kind) or not 0 <= count <= tensor.numel() or end + packed != source.size:
            raise DamagedDelta(f"kind {kind}, {count} values and {packed} bytes in {source.size} bytes")
        if kind == Kind.FULL and count != tensor.numel():
            raise DamagedDelta(f"{count} values of {tensor.numel()}")
        gaps = Gaps(source[end:], count if kind == Kind.SPARSE else 0)
        return cls(Kind(kind), source[HEADER_BYTES:end], gaps, expected)

    @property
    def changes(self) -> bool:
        """Whether an element is new."""
        return self.kind != Kind.UNCHANGED

    def apply(self, tensor: torch.Tensor) -> None:
        """Change a contiguous tensor in host memory. Errors: DamagedDelta, before anything is written."""
        elements = bits(tensor)
        values = self.values.view(elements.dtype)
        if self.kind == Kind.FULL:
            elements[:] = values
        elif self.kind == Kind.SPARSE:
            positions = unpack(self.gaps)
            if positions[-1] >= elements.size:
                raise DamagedDelta(f"element {positions[-1]} of {elements.size}")
            elements[positions] = values
