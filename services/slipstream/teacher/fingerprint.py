"""Which weights a teacher has: a fingerprint that tells two pods with different models apart.

The digest is of what from_pretrained reads: config.json and tokenizer.json, and of every tensor its name,
dtype, shape and a sample of its bytes. How the tensors are divided into files does not count.
"""

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from slipstream.weights.manifest import model_fingerprint

WINDOWS: Final = 8
WINDOW_BYTES: Final = 4096
"""Of a tensor are read: so many windows of so many bytes, evenly spread; of a smaller one all of it."""
LENGTH: Final = struct.Struct("<Q")
"""Of the header, the first 8 bytes of a safetensors file."""
LARGEST_HEADER_BYTES: Final = 100 * 2**20
"""The format's own limit."""


def weights_fingerprint(directory: Path) -> str:
    """Fingerprint of the weights of a Hugging Face directory; training a model further changes it.

    Weights that differ in nothing but bytes outside of the sample have the same one. Blocks, for a few dozen
    KiB a tensor. Errors: OSError for a directory that cannot be read.
    """
    digest = hashlib.sha256(model_fingerprint(directory).encode())
    files = sorted(directory.glob("*.safetensors")) or sorted(directory.glob("pytorch_model*.bin"))
    for line in sorted(line for file in files for line in _lines(file)):
        digest.update(line.encode())
    return digest.hexdigest()[:16]


def _lines(file: Path) -> Iterator[str]:
    """A line for each tensor; one for all of a file that is no safetensors."""
    with file.open("rb") as stream:
        for what, start, end in _tensors(stream) or [(file.name, 0, file.stat().st_size)]:
            yield f"{what} {end - start} {_sample(stream, start, end - start)}\n"


def _tensors(stream: BinaryIO) -> list[tuple[str, int, int]]:
    """Name, dtype and shape of each tensor, and from where to where its bytes lie; none where the header
    cannot be read."""
    try:
        (size,) = LENGTH.unpack(stream.read(LENGTH.size))
        header = json.loads(stream.read(min(size, LARGEST_HEADER_BYTES)))
        data = LENGTH.size + size
        found = []
        for name in header.keys() - {"__metadata__"}:
            tensor = header[name]
            start, end = map(int, tensor["data_offsets"])
            found.append((f"{name} {tensor['dtype']} {tensor['shape']}", data + start, data + end))
        return found
    except (struct.error, ValueError, KeyError, TypeError, AttributeError):
        return []


def _sample(stream: BinaryIO, start: int, size: int) -> str:
    digest = hashlib.sha256()
    if size <= WINDOWS * WINDOW_BYTES:
        stream.seek(start)
        digest.update(stream.read(size))
    else:
        for window in range(WINDOWS):
            stream.seek(start + window * (size - WINDOW_BYTES) // (WINDOWS - 1))
            digest.update(stream.read(WINDOW_BYTES))
    return digest.hexdigest()
