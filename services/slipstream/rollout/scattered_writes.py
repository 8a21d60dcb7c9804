"""Writes the changed elements of many tensors to their places in parameters, by few operations.

A model may have tens of thousands of tensors, such as each expert of each layer. On a GPU an operation takes
a few microseconds to begin, and a place needs about thirty of them; so the changes that go to one storage are
collected and written together. The gaps between the changed elements are added up on the device, so that
they cross the bus with one byte each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.rollout.load_trace import Place
from slipstream.weights.base_copy import TensorChange
from slipstream.weights.compiled import LONG
from slipstream.weights.delta import INTEGERS

CHUNK_ELEMENTS = 1 << 21
"""Most bytes of gaps that are written at once. The positions of changes take 8 bytes each, several times."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a change, and the place to which those of its elements go that lie in it.

    kind: of the tensor. start: the position from which the first gap counts. gaps: packed as in delta.py.
    values: bytes of the changed elements, in order. count: how many there are.
    """

    kind: str
    place: Place
    start: int
    gaps: NDArray[np.uint8]
    values: NDArray[np.uint8]
    count: int


@dataclass(slots=True)
class _Waiting:
    """Pieces that go to one storage, and the bytes of their gaps."""

    pieces: list[Piece] = field(default_factory=list)
    nbytes: int = 0


class ScatteredWrites:
    """Collects changes and writes them."""

    def __init__(self) -> None:
        self._written: set[str] = set()
        self._waiting: dict[tuple[int, torch.dtype], _Waiting] = {}

    def add(self, kind: str, place: Place, new: TensorChange) -> None:
        """Write the elements of a sparse change that lie in this place, now or in `finish`."""
        target = place.target
        key = (target.untyped_storage().data_ptr(), target.dtype)
        for piece in _pieces(kind, place, new):
            waiting = self._waiting.setdefault(key, _Waiting())
            if waiting.pieces and waiting.nbytes + piece.gaps.size > CHUNK_ELEMENTS:
                self._write(waiting.pieces)
                waiting = self._waiting[key] = _Waiting()
            waiting.pieces.append(piece)
            waiting.nbytes += piece.gaps.size

    def finish(self) -> set[str]:
        """Write what was collected; return the kinds of tensors of which an element was written."""
        while self._waiting:
            _, waiting = self._waiting.popitem()
            self._write(waiting.pieces)
        return self._written

    def _write(self, pieces: Sequence[Piece]) -> None:
        hit = _write(pieces)
        self._written |= {piece.kind for piece, was_hit in zip(pieces, hit, strict=True) if was_hit}


def _pieces(kind: str, place: Place, new: TensorChange) -> Iterator[Piece]:
    """Take a change apart, so that no piece is larger than a chunk."""
    packed, values, size = new.change.gaps.packed, new.change.values, place.target.element_size()
    start, done = new.first, 0
    for first in range(0, packed.size, CHUNK_ELEMENTS):
        gaps = packed[first : first + CHUNK_ELEMENTS]
        unsplit = gaps.size == packed.size
        count = new.change.gaps.count if unsplit else int(np.count_nonzero(gaps != LONG))
        yield Piece(kind, place, start, gaps, values[size * done : size * (done + count)], count)
        if not unsplit:
            start += int(gaps.sum(dtype=np.int64)) + count
            done += count


def _write(pieces: Sequence[Piece]) -> list[bool]:
    """Write pieces whose places are in one storage; return of each whether an element went to its place.

    The strides of a view of a contiguous tensor, from the largest to the smallest, take a position apart into
    the indices of the view. Dimensions of the pieces with fewer ones than others are filled with size 1.
    """
    target = pieces[0].place.target
    device, dtype = target.device, INTEGERS[target.element_size()]
    counts = [piece.count for piece in pieces]
    lengths = [piece.gaps.size for piece in pieces]
    total = sum(counts)
    if not total:  # a chunk within a long gap
        return [False] * len(pieces)
    gaps = torch.from_numpy(np.concatenate([piece.gaps for piece in pieces])).to(device)
    values = torch.from_numpy(np.concatenate([piece.values for piece in pieces])).view(dtype).to(device)
    columns = torch.tensor(_geometry(pieces), dtype=torch.int64)
    heads = torch.tensor([counts, lengths], dtype=torch.int64).to(device)
    shifts, offsets_of, *axes = columns.T.contiguous().to(device)

    owners = torch.repeat_interleave(heads[0], output_size=total)
    sums = torch.nn.functional.pad(gaps.cumsum(0, dtype=torch.int64), (1, 0))
    first_gap, first_element = (each.cumsum(0) - each for each in (heads[1], heads[0]))
    shifts = shifts - sums[first_gap] - first_element
    rest = sums[1:][gaps != LONG] + torch.arange(total, device=device) + shifts[owners]
    offsets = offsets_of[owners]
    inside = rest >= 0
    for stride, size, target_stride in zip(axes[::3], axes[1::3], axes[2::3], strict=True):
        index = rest.div(stride[owners], rounding_mode="floor")
        inside &= index < size[owners]
        rest -= index * stride[owners]
        offsets += index * target_stride[owners]
    chosen = (inside & (rest == 0)).nonzero().squeeze(1)
    flat = torch.empty(0, dtype=dtype, device=device)
    flat.set_(target.untyped_storage())
    flat[offsets[chosen]] = values[chosen]
    hit = torch.zeros(len(pieces), dtype=torch.bool, device=device)
    hit[owners[chosen]] = True
    return hit.tolist()


def _geometry(pieces: Sequence[Piece]) -> list[list[int]]:
    """Return of each piece what is added to a position, the first element of the target, and of each
    dimension the stride, the size and the stride in the target."""
    axes = [piece.place.axes for piece in pieces]
    dimensions = max(map(len, axes))
    rows = []
    for piece, own in zip(pieces, axes, strict=True):
        filled = [*own, *[(1, 1, 0)] * (dimensions - len(own))]
        rows.append([piece.start - piece.place.first, int(piece.place.target.storage_offset())])
        rows[-1] += [number for axis in filled for number in axis]
    return rows
