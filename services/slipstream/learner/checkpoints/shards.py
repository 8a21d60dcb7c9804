"""One rank's part of a checkpoint: the tensors it writes, while training may change them.

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
    """This rank's part of one tensor, and its offsets in the tensor."""

    tensor: torch.Tensor
    offsets: tuple[int, ...]


def shards_of(tensors: Mapping[str, torch.Tensor], *, rank: int) -> dict[str, Shard]:
    """Return the parts of tensors that this rank writes. Rank 0 writes tensors that are not sharded."""
    shards = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor):
            (chunk,) = tensor.__create_chunk_list__()
            local = tensor.to_local().detach()
            if local.numel():
                shards[name] = Shard(tensor=local, offsets=tuple(chunk.offsets))
        elif rank == 0:
            shards[name] = Shard(tensor=tensor.detach(), offsets=(0,) * tensor.dim())
    return shards


def whole_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    """Return the bytes of these tensors, the parts of all ranks together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


class LiveShards:
    """Shards that are written while training uses them.

    Invariant: the file holds the values at construction, provided that `copy_unwritten` is called before any
    of them changes.
    """

    def __init__(self, shards: Mapping[str, Shard]) -> None:
        self._lock = Lock()
        self._shards = {name: shard.tensor for name, shard in shards.items()}
        forms = {n: Form(dtype=s.tensor.dtype, shape=tuple(s.tensor.shape)) for n, s in shards.items()}
        self._forms = file_order(forms)
        self._offsets = {name: {OFFSET_KEY: list(shard.offsets)} for name, shard in shards.items()}
        self._copied = False

    def copy_unwritten(self) -> None:
        """Copy the shards that are not written yet to host memory: from now on the originals may change."""
        with self._lock:
            if not self._copied:
                self._shards = {name: tensor.to("cpu", copy=True) for name, tensor in self._shards.items()}
            self._copied = True

    def write(self, path: Path) -> None:
        """Write all shards as one file, in pieces.

        A copied shard is freed when it is written. Errors: OSError.
        """
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
