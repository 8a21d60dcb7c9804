"""Parameters under the names and in the shapes of a checkpoint, which may differ from those in memory."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import torch

from slipstream.hub.safetensors_header import layer_of


class CheckpointError(ValueError):
    """A checkpoint is damaged, or belongs to another model or schema."""


def in_checkpoint_form(
    model: Any, named: Iterator[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield whole parameters of a model, in its order, under the names and in the shapes of a checkpoint."""
    for layer in layers_of(named):
        yield from checkpoint_form(model, layer).items()


def layers_of(named: Iterator[tuple[str, torch.Tensor]]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the parameters of each layer together, in the order of the model."""
    for _, parameters in groupby(named, key=lambda pair: layer_of(pair[0])):
        yield dict(parameters)


def checkpoint_form(model: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the parameters of one or more whole layers under the names and in the shapes of a checkpoint.

    The conversion is that of `save_pretrained`, so published weights equal saved ones.
    """
    from transformers.core_model_loading import revert_weight_conversion

    return dict(revert_weight_conversion(model, dict(tensors)))
