"""Refuses weights that config.json ties but that differ in the files, such as a separate output head.

The rollout engine ties weights by config.json, so it would sample from another model than the trained one.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from slipstream.learner.policy.safetensors_rows import TensorOnDisk

COMPARED_VALUES: Final = 2**22
"""Values to compare at a time."""


def check_tied(model: Any, weights: Path) -> None:
    """Check a model that transformers has loaded whole: transformers does not tie weights that differ.

    Errors: ValueError for weights that config.json ties and that differ.
    """
    for head, embedding in _tied(model):
        if model.get_parameter_or_buffer(head) is not model.get_parameter_or_buffer(embedding):
            raise _differ(weights, head, embedding)


def check_tied_parts(
    model: Any,
    tensors: dict[str, TensorOnDisk],
    weights: Path,
    *,
    mesh: DeviceMesh,
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Check the tensors of the files, by the names of the model's parameters.

    Each rank compares its share of the rows, as values of `dtype`. All ranks of the mesh must call; the
    result is the same on all. Errors: ValueError for weights that config.json ties and that differ.
    """
    for head, embedding in _tied(model):
        if head not in tensors or embedding not in tensors:
            continue
        same = _same_rows(tensors[head], tensors[embedding], mesh=mesh, dtype=dtype)
        differing = torch.tensor(int(not same), device=device)
        dist.all_reduce(differing, group=mesh.get_group())
        if differing.item():
            raise _differ(weights, head, embedding)


def _tied(model: Any) -> Iterator[tuple[str, str]]:
    """Yield the names of parameters that config.json ties, such as output head and embeddings."""
    yield from model.get_expanded_tied_weights_keys(all_submodels=True).items()


def _same_rows(one: TensorOnDisk, other: TensorOnDisk, *, mesh: DeviceMesh, dtype: torch.dtype) -> bool:
    """Return whether this rank's share of the rows is equal in two tensors."""
    shape = one.get_shape()
    if shape != other.get_shape():
        return False
    rows, rank, ranks = shape[0], mesh.get_local_rank(), mesh.size()
    end = rows * (rank + 1) // ranks
    step = max(1, COMPARED_VALUES // max(1, math.prod(shape[1:])))
    for start in range(rows * rank // ranks, end, step):
        place = (slice(start, min(start + step, end)), *(slice(None) for _ in shape[1:]))
        if not torch.equal(one[place].to(dtype), other[place].to(dtype)):
            return False
    return True


def _differ(weights: Path, head: str, embedding: str) -> ValueError:
    return ValueError(
        f"{weights}: {head} and {embedding} differ, and config.json ties them (tie_word_embeddings), as the "
        f"rollout engine does; set tie_word_embeddings to false in config.json if {head} is the model's own, "
        f"or else remove {head} from the weights"
    )
