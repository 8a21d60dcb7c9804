"""Reads rows of the tensors in safetensors files, and no other bytes.

The safetensors library maps a whole file, whose pages then count as memory of the process, or reads a whole
tensor for some of its rows.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Final

import torch

from slipstream.hub.safetensors_header import Entry, entries
from slipstream.learner.checkpoints.stream import DTYPE_NAMES

DTYPES: Final = {name: dtype for dtype, name in DTYPE_NAMES.items()}
READ_BYTES: Final = 2**30
"""Bytes of one system call; Linux reads at most 2 GiB in one."""


@dataclass(frozen=True, slots=True)
class TensorOnDisk:
    """One tensor of a file. It is read when it is indexed; several threads may do so."""

    entry: Entry

    def get_shape(self) -> list[int]:
        """Return it as the slices of safetensors do, for transformers."""
        return list(self.entry.shape)

    def get_dtype(self) -> str:
        """Return it as the slices of safetensors do, for transformers."""
        return self.entry.dtype

    def __getitem__(self, place: EllipsisType | tuple[slice, ...]) -> torch.Tensor:
        """Read all of it, or a range of rows: `[a:b]` of the first axis, and the whole of the others.

        Errors: ValueError for another index, or for a dtype that torch does not have; OSError.
        """
        rows = self._rows(place)
        dtype = DTYPES.get(self.entry.dtype)
        if dtype is None:
            raise ValueError(f"{self.entry.path}: weights of dtype {self.entry.dtype} cannot be trained")
        row = math.prod(self.entry.shape[1:]) * dtype.itemsize
        shape = (len(rows), *self.entry.shape[1:]) if self.entry.shape else ()
        data = torch.empty(len(rows) * row, dtype=torch.uint8)
        self._read(data, self.entry.start + rows.start * row)
        return data.view(dtype).reshape(shape)

    def _rows(self, place: EllipsisType | tuple[slice, ...]) -> range:
        count = self.entry.shape[0] if self.entry.shape else 1
        if place is ... or not self.entry.shape:
            return range(count)
        assert isinstance(place, tuple)
        ranges = [range(size)[part] for size, part in zip(self.entry.shape, place, strict=True)]
        if any(len(part) != size for part, size in zip(ranges[1:], self.entry.shape[1:], strict=True)):
            raise ValueError(
                f"{self.entry.path}: only rows of the first axis are read, not {place} of {self.entry.shape}"
            )
        return ranges[0]

    def _read(self, data: torch.Tensor, start: int) -> None:
        left = memoryview(data.numpy())  # type: ignore[arg-type, unused-ignore]
        file = os.open(self.entry.path, os.O_RDONLY)
        try:
            while left:
                read = os.preadv(file, [left[:READ_BYTES]], start)
                if not read:
                    raise OSError(
                        f"{self.entry.path} ends before the tensors that its header names; copy it again"
                    )
                left, start = left[read:], start + read
        finally:
            os.close(file)


def tensors_on_disk(directory: Path) -> dict[str, TensorOnDisk]:
    """Return the tensors of a Hugging Face directory by name.

    Errors: OSError, ValueError for a damaged header.
    """
    return {name: TensorOnDisk(entry) for name, entry in entries(directory).items()}
