"""Checks of the shapes, dtypes and order of the tensors that callers pass.

Suffixes: _T packed tokens, _B completions.
"""

from typing import NoReturn

import torch
from torch import Tensor


def require_tensor(name: str, value: object) -> None:
    """Raise ValueError unless value is a tensor."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name}: got {type(value).__name__}, needs a torch.Tensor")


def require_shape(name: str, tensor: Tensor, shape: tuple[int, ...], of: str) -> None:
    """Raise ValueError unless tensor has the given shape, which is that of the argument `of`."""
    require_tensor(name, tensor)
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: got shape {list(tensor.shape)}, needs {list(shape)} as {of}")


def require_floating(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless tensor holds floating-point numbers."""
    require_tensor(name, tensor)
    if not tensor.is_floating_point():
        raise ValueError(f"{name}: got {tensor.dtype}, needs a floating-point tensor")


def require_integers(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless tensor holds integers."""
    require_tensor(name, tensor)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"{name}: got {tensor.dtype}, needs an integer tensor")


def require_mask(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless tensor is boolean, or numbers that are all 0 or 1."""
    if tensor.dtype != torch.bool and not bool(zeros_and_ones(tensor)):
        refuse_mask(name)


def zeros_and_ones(tensor: Tensor) -> Tensor:
    """Return whether all its numbers are 0 or 1, a bool on the tensor's device."""
    if tensor.dtype == torch.bool:
        return torch.ones((), dtype=torch.bool, device=tensor.device)
    return ((tensor == 0) | (tensor == 1)).all()


def refuse_mask(name: str) -> NoReturn:
    """Raise the ValueError for a mask with numbers other than 0 and 1."""
    raise ValueError(f"{name}: got values other than 0 and 1, needs a mask")


def require_sequence_ids(sequence_ids: Tensor) -> None:
    """Raise ValueError unless sequence_ids are integers that index a tensor. Their order is not checked."""
    require_integers("sequence_ids", sequence_ids)
    if sequence_ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"sequence_ids: got {sequence_ids.dtype}, needs int64 (or int32)")


def rises_by_one(sequence_ids: Tensor) -> Tensor:
    """Return whether ids [T], T > 0, read 0, ..., 0, 1, ..., 1, ..., a bool on their device."""
    step_T = torch.diff(sequence_ids)
    return ((step_T == 0) | (step_T == 1)).all() & (sequence_ids[0] == 0)


def refuse_sequence_ids(sequence_ids: Tensor) -> NoReturn:
    """Raise the ValueError for sequence ids that do not rise by 0 or 1 from 0."""
    raise ValueError(
        f"sequence_ids: got {sequence_ids[:8].tolist()}..., needs ids that start at 0 and rise by 0 or 1 "
        "from each token to the next"
    )


def count_sequences(sequence_ids: Tensor) -> int:
    """Return B for packed sequence_ids [T], which must read 0, ..., 0, 1, ..., 1, ..., B - 1.

    Raises ValueError where an id is skipped, out of order, or the first is not 0.
    """
    require_sequence_ids(sequence_ids)
    if sequence_ids.numel() == 0:
        return 0
    ordered, last = torch.stack([rises_by_one(sequence_ids).long(), sequence_ids[-1].long()]).tolist()
    if not ordered:
        refuse_sequence_ids(sequence_ids)
    return int(last) + 1
