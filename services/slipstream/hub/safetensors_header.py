"""What the safetensors files of a model directory hold, from their headers: no tensor is read.

    8 bytes: length of the header │ header: JSON, name → dtype, shape, place │ the bytes of each tensor

The format: https://huggingface.co/docs/safetensors.
"""

import json
import math
import os
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

INDEX_FILE: Final = "model.safetensors.index.json"
WEIGHTS_FILE: Final = "model.safetensors"
PREFIX_BYTES: Final = 8
LARGEST_HEADER_BYTES: Final = 100 * 2**20
"""The format's own limit."""
DTYPE_BYTES: Final = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
"""Bytes of a value; dtypes whose values are smaller than a byte are not here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a header says of one tensor."""

    path: Path
    dtype: str
    """As the format calls it: F32, BF16."""
    shape: tuple[int, ...]
    start: int
    """First byte in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Parameters of a model: all of them, those of its largest layer, and those outside of layers."""

    parameters: int
    layer: int
    outside: int
    """Embeddings, the output head, the last norm."""


def entries(directory: Path) -> dict[str, Entry]:
    """Every tensor of a model directory, by name; none where its weights have another format.

    Errors: OSError, ValueError for a file that is damaged.
    """
    return {name: entry for path in weight_files(directory) for name, entry in read_header(path)}


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files that a model is loaded from. Errors: OSError, ValueError for a damaged index."""
    index, single = directory / INDEX_FILE, directory / WEIGHTS_FILE
    if single.exists():  # which transformers prefers as well
        return [single]
    if not index.exists():
        return []
    try:
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return [directory / name for name in sorted(named)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{index} has no weight_map of tensors to files; copy it again") from error


def read_header(path: Path) -> Iterator[tuple[str, Entry]]:
    """The tensors of a file by name. Errors: OSError, ValueError for a file that is damaged."""
    try:
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(PREFIX_BYTES))
            header = json.loads(stream.read(min(length, LARGEST_HEADER_BYTES)))
            size = os.fstat(stream.fileno()).st_size
        header.pop("__metadata__", None)
        data = PREFIX_BYTES + length
        places = sorted(_place(said) for said in header.values())
        _check_without_gaps([(0, 0), *places, (size - data, size - data)])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise ValueError(f"{path} is not a safetensors file, or is cut off; copy it again") from error
    for name, said in header.items():
        start = data + said["data_offsets"][0]
        yield name, Entry(path=path, dtype=said["dtype"], shape=tuple(said["shape"]), start=start)


def _place(said: Mapping[str, Any]) -> tuple[int, int]:
    """First byte of a tensor's data, and the one after its last. Errors: ValueError, KeyError, TypeError."""
    start, end = said["data_offsets"]
    if any(type(each) is not int or each < 0 for each in (start, end, *said["shape"])):
        raise ValueError(f"data_offsets and shape are not all whole numbers from 0: {said}")
    if start > end:
        raise ValueError(f"data_offsets end before they start: {said}")
    itemsize = DTYPE_BYTES.get(said["dtype"])
    if itemsize is not None and end - start != math.prod(said["shape"]) * itemsize:
        raise ValueError(f"data_offsets have not the length of dtype and shape: {said}")
    return start, end


def _check_without_gaps(places: Iterable[tuple[int, int]]) -> None:
    """Errors: ValueError where data do not start at the end of the data before them."""
    for (_, end), (start, _) in pairwise(places):
        if start != end:
            raise ValueError(f"data at {start}, and the data before it end at {end}")


def layer_of(name: str) -> str:
    """What the names of all parameters of one layer begin with; empty for those of no layer."""
    layer = re.match(r".*?\.\d+\.", name)
    return layer[0] if layer else ""


def model_size(directory: Path) -> ModelSize | None:
    """Size of the model in a directory; None where its files are not there or cannot be read."""
    sizes: Counter[str] = Counter()
    try:
        for name, entry in entries(directory).items():
            sizes[layer_of(name)] += math.prod(entry.shape)
    except (OSError, ValueError):
        return None
    if not sizes:
        return None
    outside = sizes.pop("", 0)
    layer = max(sizes.values(), default=0)
    return ModelSize(parameters=sizes.total() + outside, layer=layer, outside=outside)
