"""A sharded model with only the first rows of its vocabulary, for checks of a loaded model.

So no rank gathers embeddings and output head, which are most of the weights of a small model.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

MOST_ROWS: Final = 256


def vocabulary_modules(model: Any) -> list[torch.nn.Module]:
    """Return the input embeddings, and the output head if the model has one."""
    both = (model.get_input_embeddings(), model.get_output_embeddings())
    return [module for module in both if module is not None]


@contextmanager
def first_rows_only(model: Any, plain: Any, mesh: DeviceMesh) -> Iterator[None]:
    """Make a sharded model compute with the first rows of embeddings and head. All ranks must call it.

    plain: the same model, not sharded and without data. Its modules replace those of the model meanwhile.
    """
    modules, small = vocabulary_modules(model), vocabulary_modules(plain)
    for few, many in zip(small, modules, strict=True):
        _fill(few, many, mesh)
    small[0].padding_idx = None  # type: ignore[assignment]  # it may be the index of a later row
    _put(model, small)
    try:
        yield
    finally:
        _put(model, modules)


def _put(model: Any, modules: Sequence[torch.nn.Module]) -> None:
    embeddings, *head = modules
    model.set_input_embeddings(embeddings)
    if head:
        model.set_output_embeddings(head[0])


def _fill(small: torch.nn.Module, full: torch.nn.Module, mesh: DeviceMesh) -> None:
    for name, parameter in full.named_parameters(recurse=False):
        small.register_parameter(name, torch.nn.Parameter(_rows(parameter, mesh), requires_grad=False))
    for name, buffer in full.named_buffers(recurse=False):
        small.register_buffer(name, buffer, persistent=False)


def _rows(parameter: Any, mesh: DeviceMesh) -> torch.Tensor:
    """Return the first rows of a sharded parameter, in float32. Rank 0 has them all, and broadcasts them."""
    assert isinstance(parameter, DTensor)
    count = min(MOST_ROWS, -(-parameter.shape[0] // mesh.size()))
    local = parameter.to_local().detach()
    rows = local.new_empty((count, *parameter.shape[1:]))
    if mesh.get_local_rank() == 0:
        rows.copy_(local[:count])
    torch.distributed.broadcast(rows, group=mesh.get_group(), group_src=0)
    return rows.float()
