"""Sharding of a model over ranks: each rank holds a part of each parameter, its gradient and its moments.

See PyTorch FSDP, arXiv:2304.11277; FSDP2's `fully_shard`. A layer's parameters are gathered for its forward
and its backward pass, and freed in between.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard


def shard(
    root: torch.nn.Module,
    mesh: DeviceMesh,
    *,
    dtype: torch.dtype,
    outside: torch.dtype | None = None,
    apart: Sequence[torch.nn.Module] = (),
) -> None:
    """Shard a module's parameters over a mesh, in place; its loss is a sum over ranks, not a mean.

    dtype: in which layers are gathered, that of the forward pass.
    outside: the same for modules outside of layers, such as a head that computes in float32; None for the
        dtype that they are stored in.
    apart: modules that a call of `root` does not gather, and must not compute with.
    Gradients are reduced in float32. Only calls of `root` itself may compute.
    """
    narrow = None if dtype is torch.float32 and outside is None else dtype
    of_layers = MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=torch.float32)
    for layer in layers(root):
        fully_shard(layer, mesh=mesh, mp_policy=of_layers)
    if apart:
        fully_shard(list(apart), mesh=mesh)
    # by default the root stays gathered after a pass without gradient, and misses a change of its shards
    wide = MixedPrecisionPolicy(param_dtype=outside, reduce_dtype=torch.float32)
    fully_shard(root, mesh=mesh, mp_policy=wide, reshard_after_forward=True)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo reduces by sum only
            module.set_gradient_divide_factor(1.0)


def checkpoint_activations(model: Any) -> None:
    """Keep only the inputs of a transformers model's layers for the backward pass; recompute the rest.

    See Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174. Errors: ValueError for a model that
    transformers does not support in this.
    """
    blocks = layers(model)
    if not blocks:
        raise ValueError(
            f"learner.activation_checkpointing: {type(model).__name__} has no layers that support it; "
            "set it to false"
        )
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for layer in blocks:
        layer.training = True  # transformers checkpoints only then; dropout below the layer stays off


def layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the transformer blocks."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
