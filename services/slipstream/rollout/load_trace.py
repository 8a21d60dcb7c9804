"""Where the elements of a checkpoint's tensors lie in the parameters of a model.

The model's own `load_weights` is called, and its copies are noted instead of executed: each says which view
of a tensor of the checkpoint goes to which view of a parameter (fused, sharded, of one expert).
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

CONSTANT_WRITES = {torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default}
"""What loaders write besides copies: padding, which has this value already."""


class UntraceableLoad(Exception):
    """A loader does more than copying views of the checkpoint's tensors, or layers use packed copies."""


@dataclass(frozen=True, slots=True)
class Place:
    """A view of a checkpoint's tensor, from element `first` on with these strides, and where it goes."""

    first: int
    strides: tuple[int, ...]
    target: torch.Tensor

    def has_all_of(self, tensor: torch.Tensor) -> bool:
        """Return whether the target is all of the checkpoint's tensor in the same order, in host memory."""
        target = self.target
        in_order = target.is_contiguous() and self.strides == tensor.stride()
        return in_order and target.shape == tensor.shape and target.device.type == "cpu"

    def copy(self, tensor: torch.Tensor) -> None:
        """Copy all of the view from the checkpoint's tensor."""
        start = tensor.storage_offset() + self.first
        self.target.copy_(torch.as_strided(tensor, self.target.shape, self.strides, start))

    @property
    def axes(self) -> list[tuple[int, int, int]]:
        """Of each dimension with more than one element, from the largest stride on: the stride, the size, and
        the stride in the target."""
        axes = zip(self.strides, self.target.shape, self.target.stride(), strict=True)
        return sorted((axis for axis in axes if axis[1] != 1), reverse=True)


def trace(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> dict[str, list[Place]]:
    """Return the places of each tensor in the parameters of the model. Errors: UntraceableLoad."""
    if packed := _packed_copy(model):
        raise UntraceableLoad(packed)
    recorder = Recorder(model, tensors)
    memory = {name: parameter.data for name, parameter in model.named_parameters()}
    try:
        with torch.no_grad(), recorder:
            model.load_weights(tensors.items())  # type: ignore[operator]
    except UntraceableLoad:
        raise
    except Exception as error:  # of the model's own code, which expects parameters as they were at the start
        raise UntraceableLoad(f"{type(error).__name__}: {error}") from error
    finally:
        moved = [name for name, own in model.named_parameters() if own.data_ptr() != memory[name].data_ptr()]
        for name in moved:
            model.get_parameter(name).data = memory[name]
    if moved:
        raise UntraceableLoad(f"a loader gives {moved[0]} other memory")
    return recorder.places


class Recorder(TorchDispatchMode):
    """Notes copies to the parameters of a model instead of executing them. Errors: UntraceableLoad."""

    def __init__(self, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places: dict[str, list[Place]] = {}
        owned = (*model.parameters(), *model.buffers())
        self._owned = {_storage(tensor) for tensor in owned}
        self._taken: dict[int, list[tuple[int, int]]] = {}
        """By storage: the first and the last element of each view that was written."""
        self._kept: list[torch.Tensor] = []
        self._sources: dict[int, list[tuple[int, int, str]]] = {}
        """By storage: the first byte of each tensor there, its first byte in the checkpoint's tensor, and the
        name of that."""
        self._dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            if tensor.numel():
                self._add(tensor, name, 0)
        for sources in self._sources.values():
            sources.sort()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Note a copy or a move between devices, and execute everything that does not change parameters."""
        options = dict(kwargs or {})
        if func is torch.ops.aten.copy_.default and _storage(args[0]) in self._owned:
            self._note(*args[:2])
            return args[0]
        if func is torch.ops.aten._to_copy.default and (moved := self._moved(args[0], options)) is not None:
            return moved
        for written in _written(func, args, options):
            if _storage(written) in self._owned:
                if func in CONSTANT_WRITES:
                    self._reserve(written)
                    return written
                raise UntraceableLoad(f"a loader changes parameters by {func}")
        return func(*args, **options)

    def _note(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if not source.numel():
            return
        place = self._find(source)
        alike = source.dtype == target.dtype and source.shape == target.shape
        if place is None or not alike or not _one_to_one(source):
            raise UntraceableLoad(f"a loader computes or converts a tensor of shape {tuple(target.shape)}")
        self._reserve(target)
        name, first = place
        self.places.setdefault(name, []).append(Place(first, source.stride(), target.detach()))

    def _reserve(self, target: torch.Tensor) -> None:
        """Refuse a view of a parameter of which elements are written twice, or lie between other ones'."""
        last = sum((size - 1) * stride for size, stride in zip(target.shape, target.stride(), strict=True))
        start = int(target.storage_offset())
        taken = self._taken.setdefault(_storage(target), [])
        if target.numel() and any(start <= end and first <= start + last for first, end in taken):
            raise UntraceableLoad(f"a loader writes twice to a parameter of shape {tuple(target.shape)}")
        taken.append((start, start + last))

    def _moved(self, source: torch.Tensor, options: Mapping[str, Any]) -> torch.Tensor | None:
        """Return a stand-in, without memory, for a tensor that a loader moves to another device."""
        place = self._find(source)
        if place is None or options.get("dtype") not in {None, source.dtype} or not source.is_contiguous():
            return None
        moved = torch.empty(source.shape, dtype=source.dtype, device="meta")
        self._add(moved, *place)
        return moved

    def _add(self, tensor: torch.Tensor, name: str, first: int) -> None:
        """Note that a tensor is the checkpoint's of this name, from element `first` on."""
        self._kept.append(tensor)  # so that no other tensor gets its storage
        start = int(tensor.storage_offset()) * tensor.itemsize
        self._sources.setdefault(_storage(tensor), []).append((start, first * tensor.itemsize, name))

    def _find(self, view: torch.Tensor) -> tuple[str, int] | None:
        """Return the name of the tensor of which this is a view, and its first element there."""
        sources = self._sources.get(_storage(view), [])
        byte = view.storage_offset() * view.itemsize
        number = bisect_right(sources, byte, key=lambda source: source[0]) - 1
        if number < 0:
            return None
        start, first, name = sources[number]
        if view.dtype != self._dtypes[name]:
            return None
        return name, (first + byte - start) // view.itemsize


def _written(func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an operation of torch writes."""
    if not func._schema.is_mutable:
        return []
    by_name = {parameter.name: options.get(parameter.name) for parameter in func._schema.arguments}
    by_name |= {parameter.name: value for parameter, value in zip(func._schema.arguments, args, strict=False)}
    written = [
        by_name[parameter.name]
        for parameter in func._schema.arguments
        if parameter.alias_info is not None and parameter.alias_info.is_write
    ]
    several = [each if isinstance(each, list | tuple) else [each] for each in written]
    return [tensor for each in several for tensor in each if isinstance(tensor, torch.Tensor)]


def _packed_copy(model: torch.nn.Module) -> str:
    """Return which layer computes with a packed copy of its weight, as a reason; "" for none.

    vLLM puts the copy into the closure of a layer's `cpu_linear`, where it cannot be compared.
    """
    for name, module in model.named_modules():
        kernel = getattr(module, "cpu_linear", None)
        if getattr(kernel, "__closure__", None):
            return f"{name} computes with a packed copy of its weight"
    return ""


def _one_to_one(view: torch.Tensor) -> bool:
    """Return whether the strides of a view, from the largest on, take its positions apart uniquely."""
    reach = 0
    for stride, size in sorted(zip(view.stride(), view.shape, strict=True)):
        if size > 1 and stride <= reach:
            return False
        reach += (size - 1) * stride
    return True


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
