"""Writes a model's weights as safetensors in a Hugging Face directory, tensor by tensor."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch

from slipstream.learner.checkpoints.stream import Form, pieces_of, write_file

WEIGHTS_FILE: Final = "model.safetensors"
Named = Iterator[tuple[str, torch.Tensor]]


def write_weights(
    directory: Path,
    tensors: Callable[[], Named],
    *,
    dtype: torch.dtype,
    forms: Callable[[], Named] | None = None,
) -> None:
    """Write `model.safetensors` in a dtype, with one of `tensors` in memory at a time.

    tensors: called once for the shapes, and once for the values.
    forms: yields tensors of the same names and shapes more cheaply, for the shapes. Errors: OSError.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in (forms or tensors)()}
    pieces = (piece for _, tensor in tensors() for piece in pieces_of(tensor, dtype=dtype))
    directory.mkdir(parents=True, exist_ok=True)
    header = {name: Form(dtype=dtype, shape=shape) for name, shape in shapes.items()}
    write_file(directory / WEIGHTS_FILE, header, pieces, metadata={"format": "pt"})


def write_config(model: Any, directory: Path, *, dtype: torch.dtype) -> None:
    """Write the config.json of a model whose weights are written in a dtype. Errors: OSError."""
    config = copy.deepcopy(model.config)
    config.dtype = dtype
    config.architectures = config.architectures or [type(model).__name__]
    directory.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(directory)
