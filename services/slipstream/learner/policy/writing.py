"""A model's weights as safetensors in a Hugging Face directory, written tensor by tensor."""

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
    """Write `model.safetensors` in a dtype; no more than one of `tensors` needs to exist at a time.

    `tensors` is called once for the shapes and once for the values, unless `forms` yields tensors of the same
    names and shapes more cheaply. Errors: OSError.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in (forms or tensors)()}
    pieces = (piece for _, tensor in tensors() for piece in pieces_of(tensor, dtype=dtype))
    directory.mkdir(parents=True, exist_ok=True)
    header = {name: Form(dtype=dtype, shape=shape) for name, shape in shapes.items()}
    write_file(directory / WEIGHTS_FILE, header, pieces, metadata={"format": "pt"})


def write_config(model: Any, directory: Path, *, dtype: torch.dtype) -> None:
    """Write the config.json of a model whose weights are, or will be, written in a dtype. Errors: OSError."""
    config = copy.deepcopy(model.config)
    config.dtype = dtype
    config.architectures = config.architectures or [type(model).__name__]
    directory.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(directory)
