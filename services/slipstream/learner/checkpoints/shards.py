"""One rank's part of a checkpoint: which tensors it writes, and how training may change them meanwhile.

A file of a rank is a safetensors file with the offsets of its parts in the whole tensors, under the keys by
which torch.distributed.checkpoint reads it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

import torch
from torch.distributed.tensor import DTensor

from slipstream.learner.checkpoints.stream import PIECE_BYTES, Form, file_order, write_file

OFFSETS_KEY: Final = "DCP_SHARDING_INFO"
OFFSET_KEY: Final = "saved_offsets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """This rank's part of one tensor, and where in the tensor it begins."""

    tensor: torch.Tensor
    offsets: tuple[int, ...]


def shards_of(tensors: Mapping[str, torch.Tensor], *, rank: int) -> dict[str, Shard]:
    """What this rank writes: its parts of sharded tensors; of the others, rank 0 writes all."""
    found = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor):
            (chunk,) = tensor.__create_chunk_list__()
            local = tensor.to_local().detach()
            if local.numel():
                found[name] = Shard(tensor=local, offsets=tuple(chunk.offsets))
        elif rank == 0:
            found[name] = Shard(tensor=tensor.detach(), offsets=(0,) * tensor.dim())
    return found


def whole_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    """Size of a checkpoint of these tensors, the parts of all ranks together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


class LiveShards:
    """Shards that are written while their owner computes with them. Invariant: what is written is what they
    held when this was made, provided that the owner calls `copy_unwritten` before it changes them."""

    def __init__(self, shards: Mapping[str, Shard]) -> None:
        self._lock = Lock()
        self._shards = {name: shard.tensor for name, shard in shards.items()}
        forms = {n: Form(dtype=s.tensor.dtype, shape=tuple(s.tensor.shape)) for n, s in shards.items()}
        self._forms = file_order(forms)
        self._offsets = {name: {OFFSET_KEY: list(shard.offsets)} for name, shard in shards.items()}
        self._left = False

    def copy_unwritten(self) -> None:
        """Copy what is not written yet, to the memory of the processor: from now on the owner may change the
        originals."""
        with self._lock:
            if not self._left:
                self._shards = {name: tensor.to("cpu", copy=True) for name, tensor in self._shards.items()}
            self._left = True

    def write(self, path: Path) -> None:
        """Write all of them as one file, in pieces. A shard is let go when it is written. Errors: OSError."""
        metadata = {"format": "pt", OFFSETS_KEY: json.dumps(self._offsets)}
        write_file(path, self._forms, self._pieces(), metadata=metadata)

    def _pieces(self) -> Iterator[torch.Tensor]:
        buffer = torch.empty(PIECE_BYTES, dtype=torch.uint8)
        for name, form in self._forms.items():
            for start in range(0, form.bytes, PIECE_BYTES):
                piece = buffer[: min(PIECE_BYTES, form.bytes - start)]
                with self._lock:
                    data = self._shards[name].reshape(-1).view(torch.uint8)
                    piece.copy_(data[start : start + PIECE_BYTES])
                yield piece
            with self._lock:
                del self._shards[name]
