"""The headers of the safetensors files of a model directory; no tensor is read.

    8 bytes: length of the header │ header: JSON, name → dtype, shape, offsets │ the bytes of each tensor

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

from slipstream.config.problem import Invalid

INDEX_FILE: Final = "model.safetensors.index.json"
WEIGHTS_FILE: Final = "model.safetensors"
PREFIX_BYTES: Final = 8
LARGEST_HEADER_BYTES: Final = 100 * 2**20
"""The limit of the format."""
DTYPE_BYTES: Final = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
"""Bytes of a value, without the dtypes whose values are smaller than a byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor, as the header describes it."""

    path: Path
    dtype: str
    """In the notation of the format: F32, BF16."""
    shape: tuple[int, ...]
    start: int
    """Offset of its first byte in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Numbers of parameters of a model: in all, in its largest layer, and outside of layers."""

    parameters: int
    layer: int
    outside: int
    """Embeddings, the output head, the last norm."""


def entries(directory: Path) -> dict[str, Entry]:
    """Return every tensor of a model directory by name; none if its weights have another format.

    Errors: OSError, ValueError for a damaged file.
    """
    return {name: entry for path in weight_files(directory) for name, entry in read_header(path)}


def weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files of a model. Errors: OSError, Invalid for a damaged index."""
    index, single = directory / INDEX_FILE, directory / WEIGHTS_FILE
    if single.exists():  # transformers prefers it too
        return [single]
    if not index.exists():
        return []
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return [directory / name for name in sorted(names)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Invalid(f"{index} has no weight_map of tensors to files", remedy="copy it again") from error


def read_header(path: Path) -> Iterator[tuple[str, Entry]]:
    """Yield the tensors of a file by name. Errors: OSError, ValueError for a damaged file."""
    try:
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(PREFIX_BYTES))
            header = json.loads(stream.read(min(length, LARGEST_HEADER_BYTES)))
            size = os.fstat(stream.fileno()).st_size
        header.pop("__metadata__", None)
        data = PREFIX_BYTES + length
        spans = sorted(_span(tensor) for tensor in header.values())
        _check_without_gaps([(0, 0), *spans, (size - data, size - data)])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise ValueError(f"{path} is not a safetensors file, or is cut off; copy it again") from error
    for name, tensor in header.items():
        start = data + tensor["data_offsets"][0]
        yield name, Entry(path=path, dtype=tensor["dtype"], shape=tuple(tensor["shape"]), start=start)


def _span(tensor: Mapping[str, Any]) -> tuple[int, int]:
    """Return the start and end of a tensor's data. Errors: ValueError, KeyError, TypeError."""
    start, end = tensor["data_offsets"]
    if any(type(each) is not int or each < 0 for each in (start, end, *tensor["shape"])):
        raise ValueError(f"data_offsets and shape are not all whole numbers from 0: {tensor}")
    if start > end:
        raise ValueError(f"data_offsets end before they start: {tensor}")
    itemsize = DTYPE_BYTES.get(tensor["dtype"])
    if itemsize is not None and end - start != math.prod(tensor["shape"]) * itemsize:
        raise ValueError(f"data_offsets do not have the length of dtype and shape: {tensor}")
    return start, end


def _check_without_gaps(spans: Iterable[tuple[int, int]]) -> None:
    """Raise ValueError unless each span starts at the end of the one before it."""
    for (_, end), (start, _) in pairwise(spans):
        if start != end:
            raise ValueError(f"the data at {start} do not start at {end}, the end of the data before them")


def layer_of(name: str) -> str:
    """Return the prefix that the parameters of one layer share; empty for a parameter outside of layers."""
    layer = re.match(r".*?\.\d+\.", name)
    return layer[0] if layer else ""


def model_size(directory: Path) -> ModelSize | None:
    """Return the size of the model in a directory; None if its files are missing or unreadable."""
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
