"""A fingerprint of a teacher's weights, by which the learner notices teachers with different models.

It is a digest of config.json, tokenizer.json, and the name, dtype, shape and a sample of the bytes of every
tensor. It does not depend on how the tensors are divided into files.
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
"""The sample of a tensor: WINDOWS evenly spread windows of WINDOW_BYTES; a smaller tensor is read whole."""
LENGTH: Final = struct.Struct("<Q")
"""The length of the header: the first 8 bytes of a safetensors file."""
LARGEST_HEADER_BYTES: Final = 100 * 2**20
"""The limit of the safetensors format."""


def weights_fingerprint(directory: Path) -> str:
    """Return the fingerprint of the weights in a Hugging Face directory; further training changes it.

    Weights that differ only in bytes outside of the sample have the same fingerprint. Blocks, and reads a few
    dozen KiB of each tensor. Errors: OSError for a directory that cannot be read.
    """
    digest = hashlib.sha256(model_fingerprint(directory).encode())
    files = sorted(directory.glob("*.safetensors")) or sorted(directory.glob("pytorch_model*.bin"))
    for line in sorted(line for file in files for line in _lines(file)):
        digest.update(line.encode())
    return digest.hexdigest()[:16]


def _lines(file: Path) -> Iterator[str]:
    """Yield a line for each tensor; one line for a file that is not in the safetensors format."""
    with file.open("rb") as stream:
        for label, start, end in _tensors(stream) or [(file.name, 0, file.stat().st_size)]:
            yield f"{label} {end - start} {_sample(stream, start, end - start)}\n"


def _tensors(stream: BinaryIO) -> list[tuple[str, int, int]]:
    """Return label (name, dtype, shape), first byte and end of each tensor; none if the header is damaged."""
    try:
        (size,) = LENGTH.unpack(stream.read(LENGTH.size))
        header = json.loads(stream.read(min(size, LARGEST_HEADER_BYTES)))
        data = LENGTH.size + size
        tensors = []
        for name in header.keys() - {"__metadata__"}:
            tensor = header[name]
            start, end = map(int, tensor["data_offsets"])
            tensors.append((f"{name} {tensor['dtype']} {tensor['shape']}", data + start, data + end))
        return tensors
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
