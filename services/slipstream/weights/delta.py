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

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import TypeVar

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from slipstream.weights.compiled import (
    LONG,
    copy_changes,
    read_elements,
    round_to_bfloat16,
    write_elements,
)
from slipstream.weights.threads import in_pool, results

S = TypeVar("S", bound=np.generic)

HEADER_WORDS = 4
HEADER_BYTES = 8 * HEADER_WORDS
CHUNK_ELEMENTS = 1 << 21
"""Elements that one thread compares. 1 << 19 took a quarter more time, for the calls of two threads."""
LOOK_EVERY, LOOK_AT = 4096, 64
"""A first look compares 64 of each 4096 elements: a tensor that changed everywhere is then not compared
as a whole. Elements far apart would take the memory traffic of all of them."""
DENSE_SHARE = 0.2
"""Share of changed elements above which a tensor travels as a whole."""
VALUES_SHARE = 0.05
"""Share of changed elements up to which a comparison keeps their values."""
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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

    def last(self) -> int:
        """Return the last position. Errors: DamagedDelta if there are not `count` positions, at least one."""
        count = np.count_nonzero(self.packed != LONG)
        if count != self.count or (self.packed.size and self.packed[-1] == LONG):
            raise DamagedDelta(f"{count} positions instead of {self.count}")
        return int(self.packed.sum(dtype=np.int64)) + self.count - 1


@dataclass(frozen=True, slots=True)
class Changed:
    """The changed elements of a tensor: where they are, and their values [count] as integers.

    No values if more than VALUES_SHARE of the elements of a part changed.
    """

    gaps: Gaps
    values: NDArray[np.generic] | None


NO_GAPS = Gaps(np.empty(0, np.uint8), 0)


class DamagedDelta(ValueError):
    """A delta is malformed, or does not lead to the learner's tensors."""


def bits(tensor: torch.Tensor) -> NDArray[np.generic]:
    """Return the elements of a contiguous tensor in host memory as flat integers, without a copy."""
    elements: NDArray[np.generic] = tensor.view(-1).view(INTEGERS[tensor.element_size()]).numpy()
    return elements


def rounds(source: torch.dtype, target: torch.dtype) -> bool:
    """Return whether `take_over` rounds values of one dtype to the other, without memory for all of them."""
    return source == torch.float32 and target == torch.bfloat16


def take_over(old: torch.Tensor, new: torch.Tensor) -> Callable[[], Changed | None]:
    """Begin to give `old` the elements of `new`, on several threads.

    Both are contiguous, of one shape, and in host memory. new: of the dtype of `old`, or float32 for an `old`
    in bfloat16, to which it is rounded. The returned function waits until it is done, and returns the
    elements that differed; None above DENSE_SHARE. Errors: TypeError for other dtypes.
    """
    if new.dtype != old.dtype and not rounds(new.dtype, old.dtype):
        raise TypeError(f"a weight in {old.dtype} cannot take over values in {new.dtype}: convert them first")
    old_N, new_N = bits(old), bits(new)
    if _differ_everywhere(old_N, new_N):
        old.copy_(new)
        return lambda: None
    starts = range(0, old_N.size, CHUNK_ELEMENTS)
    running = in_pool(partial(_take_over_chunk, old_N, new_N), starts)

    def changed() -> Changed | None:
        joined = _join(results(running))
        return joined if joined.gaps.count <= DENSE_SHARE * old_N.size else None

    return changed


def compile_loops(element_sizes: Iterable[int]) -> None:
    """Compile what applies changes to tensors whose elements have these sizes in bytes: half a second or so.

    Otherwise the first change that arrives waits for it, and with it the broadcast to all members.
    """
    for size in set(element_sizes):
        elements = bits(torch.zeros(1, dtype=INTEGERS[size]))
        write_elements(elements, NO_GAPS.packed, elements[:0])


def _differ_everywhere(old_N: NDArray[np.generic], new_N: NDArray[np.generic]) -> bool:
    end = old_N.size - old_N.size % LOOK_EVERY
    old, new = (each[:end].reshape(-1, LOOK_EVERY)[:, :LOOK_AT] for each in (old_N, new_N))
    if new.dtype != old.dtype:
        new = _rounded(new.flatten(), np.empty(old.size, old.dtype)).reshape(old.shape)
    return bool(np.count_nonzero(old != new) > 2 * DENSE_SHARE * old.size)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The changed elements of a part of a tensor. `after`: unchanged elements after the last one."""

    changed: Changed
    after: int


class _Scratch(threading.local):
    """Memory of one thread, kept from chunk to chunk: new memory made a comparison 1.4 to 2 times as long."""

    def __init__(self) -> None:
        self._kept: dict[str, NDArray[np.uint8]] = {}

    def array(self, use: str, size: int, dtype: np.dtype[S]) -> NDArray[S]:
        """Return an array [size] of any content, until the next call in this thread for the same use."""
        nbytes = size * dtype.itemsize
        kept = self._kept.get(use)
        if kept is None or kept.size < nbytes:
            kept = self._kept[use] = np.empty(nbytes, np.uint8)
        return kept[:nbytes].view(dtype)


_scratch = _Scratch()


def _take_over_chunk(old_N: NDArray[np.generic], new_N: NDArray[np.generic], start: int) -> Chunk:
    old, new = old_N[start : start + CHUNK_ELEMENTS], new_N[start : start + CHUNK_ELEMENTS]
    if new.dtype != old.dtype:
        new = _rounded(new, _scratch.array("rounded", new.size, old.dtype))
    packed = _scratch.array("packed", old.size + old.size // LONG + 1, np.dtype(np.uint8))
    values = _scratch.array("values", old.size, old.dtype)
    count, used, after = copy_changes(old, new, packed, values)
    few = count <= VALUES_SHARE * old.size
    return Chunk(Changed(Gaps(packed[:used].copy(), count), values[:count].copy() if few else None), after)


def _rounded(floats: NDArray[np.generic], rounded: NDArray[np.generic]) -> NDArray[np.generic]:
    """Round float32 numbers to bfloat16, both by their bits, [N] each; return `rounded`."""
    round_to_bfloat16(floats.view(np.uint32), rounded.view(np.uint16))
    return rounded


def _join(chunks: Sequence[Chunk]) -> Changed:
    """Return the changed elements of consecutive parts as those of the whole."""
    packed, count, before = [NO_GAPS.packed], 0, 0
    for chunk in chunks:
        gaps = chunk.changed.gaps
        if not gaps.count:
            before += chunk.after
            continue
        packed.append(_after(before, gaps.packed))
        count, before = count + gaps.count, chunk.after
    values = [chunk.changed.values for chunk in chunks if chunk.changed.values is not None]
    complete = bool(values) and len(values) == len(chunks)
    return Changed(Gaps(np.concatenate(packed), count), np.concatenate(values) if complete else None)


def _after(elements: int, packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return packed positions that begin this many unchanged elements later."""
    first = int(np.argmax(packed != LONG))
    long, rest = divmod(int(packed[first]) + elements, LONG)
    longer = np.array([*[LONG] * long, rest], np.uint8)
    return np.concatenate([packed[:first], longer, packed[first + 1 :]])


def union(several: Iterable[Gaps | None]) -> Gaps | None:
    """Return the positions that are in any of these; None if one of them is None.

    This takes two bytes of memory for each element up to the last position. Sorted numbers would take more
    than 24 for each position.
    """
    positions: list[Gaps] = []
    for gaps in several:
        if gaps is None:
            return None
        positions.append(gaps)
    if len(positions) < 2:
        return positions[0] if positions else NO_GAPS
    changed = np.zeros(1 + max(gaps.last() for gaps in positions), np.uint8)
    for gaps in positions:
        write_elements(changed, gaps.packed, np.ones(gaps.count, np.uint8))
    unchanged, starts = np.zeros_like(changed), range(0, changed.size, CHUNK_ELEMENTS)
    return _join(results(in_pool(partial(_take_over_chunk, unchanged, changed), starts))).gaps


def digest(tensor: torch.Tensor) -> int:
    """Return the XXH3 digest of a contiguous tensor in host memory, as a signed number of 64 bits."""
    number = xxhash.xxh3_64_intdigest(bits(tensor).data)
    return number - (1 << 64) if number >> 63 else number


def change_bytes(tensor: torch.Tensor, gaps: Gaps | None) -> int:
    """Return the size of a change on the wire in bytes; with gaps None, that of the whole tensor."""
    if gaps is None:
        return HEADER_BYTES + tensor.nbytes
    return HEADER_BYTES + gaps.count * tensor.element_size() + gaps.nbytes


def change_of(
    tensor: torch.Tensor, gaps: Gaps | None, tensor_digest: int, values: NDArray[np.generic] | None = None
) -> torch.Tensor:
    """Return a change as it travels, [bytes] uint8.

    gaps: of the changed elements; None sends all. values: those elements, which are read without it.
    """
    if gaps is None:
        kind, values, packed = Kind.FULL, bits(tensor), NO_GAPS.packed
    else:
        kind, packed = Kind.SPARSE if gaps.count else Kind.UNCHANGED, gaps.packed
        if values is None:
            values = np.empty(gaps.count, bits(tensor).dtype)
            read_elements(bits(tensor), packed, values)
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
            last = self.gaps.last()
            if last >= elements.size:
                raise DamagedDelta(f"element {last} of {elements.size}")
            write_elements(elements, self.gaps.packed, values)
