"""Writes tensors as one safetensors file, piece by piece, without a second copy.

    8 bytes: length of the header │ header: JSON, name → dtype, shape, place │ the bytes of each tensor

The file is synced to disk every SYNC_BYTES, so that its size shows how much has really been written.
"""

import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import torch

PIECE_BYTES: Final = 16 * 2**20
SYNC_BYTES: Final = 64 * 2**20
"""Written bytes after which the file is synced to disk."""
HEADER_ALIGNMENT: Final = 8
DTYPE_NAMES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The entry of one tensor in the header of a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size of the tensor's data."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_file(
    path: Path,
    forms: Mapping[str, Form],
    pieces: Iterable[torch.Tensor],
    *,
    metadata: Mapping[str, str],
) -> None:
    """Write a safetensors file, and sync it to disk.

    pieces: the elements of all tensors in the order of `forms`, in runs of any length. Errors: OSError.
    """
    with path.open("wb") as stream:
        stream.write(_header(forms, metadata))
        unsynced = written = 0
        for piece in pieces:
            data = piece.detach().reshape(-1).contiguous().view(torch.uint8).numpy()
            stream.write(data)  # type: ignore[arg-type, unused-ignore]
            written += data.nbytes
            unsynced += data.nbytes
            if unsynced >= SYNC_BYTES:
                _sync(stream)
                unsynced = 0
        assert written == sum(form.bytes for form in forms.values()), "the data are not those of the header"
        _sync(stream)


def file_order(forms: Mapping[str, Form]) -> dict[str, Form]:
    """Return the forms, widest dtype first, then by name: each tensor is aligned in the file."""
    return dict(sorted(forms.items(), key=lambda entry: (-entry[1].dtype.itemsize, entry[0])))


def pieces_of(tensor: torch.Tensor, *, dtype: torch.dtype | None = None) -> Iterator[torch.Tensor]:
    """Yield a tensor's elements in host memory, in copies of PIECE_BYTES at most."""
    flat = tensor.detach().reshape(-1)
    step = max(1, PIECE_BYTES // tensor.element_size())
    for start in range(0, flat.numel(), step):
        yield flat[start : start + step].to("cpu", dtype or flat.dtype, copy=True)


def _header(forms: Mapping[str, Form], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, form in forms.items():
        place = [offset, offset + form.bytes]
        entries[name] = {"dtype": DTYPE_NAMES[form.dtype], "shape": list(form.shape), "data_offsets": place}
        offset += form.bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def _sync(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())
