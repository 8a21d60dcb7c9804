"""Writes the changes of a delta into the parameters of a model, instead of loading all of its weights.

    trace    where the elements of each tensor lie in the parameters (load_trace.py)
    write    changed elements, to their places; on a GPU only they cross the bus
    prove    the first delta that changes a kind of tensor (one name, in any layer) is written, and then the
             version is loaded in full: if both lead to the same bytes in all tensors of the model, later
             changes of this kind are only written

The proof is needed because layers may keep other forms of their weights, such as a matrix that is computed
from another one. A model whose layers compute with packed copies (vLLM's CPU kernels) is always loaded in
full, and so is one whose loader converts or computes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from slipstream.rollout.load_trace import Place, UntraceableLoad, trace
from slipstream.weights.base_copy import TensorChange
from slipstream.weights.compiled import LONG
from slipstream.weights.delta import INTEGERS, Change, Kind, digest
from slipstream.weights.threads import in_pool, results
from slipstream.weights.transfer import WORD_BYTES, checksum

UNRELATED = {"kv_cache", "_parameters", "_buffers", "_modules"}
"""Attributes of layers that are no form of their weights, or are looked at by other ways."""
CHUNK_ELEMENTS = 1 << 22
"""Changes that are written at once. Their positions take 8 bytes each, several times."""


class ParameterWriter:
    """Writes deltas into one model. `refusal`: why they have to be loaded in full; "" as long as they do not.

    After an error of `write`, the weights of the model are of no version until one is loaded in full.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.refusal = ""
        self._model = model
        self._places: dict[str, list[Place]] | None = None
        self._addresses: dict[str, int] = {}
        self._proven: set[str] = set()
        """Kinds of tensors."""
        self._in_doubt: tuple[set[str], dict[str, int]] | None = None

    @torch.inference_mode()
    def write(self, tensors: Mapping[str, torch.Tensor], changes: Sequence[TensorChange]) -> bool:
        """Write the changes; return whether this is all, and the version does not have to be loaded in full.

        tensors: the new version, by its names in a checkpoint, contiguous in host memory. changes: what is
        new in it.
        """
        self._in_doubt = None
        if self.refusal:
            return False
        try:
            places = self._traced(tensors)
        except UntraceableLoad as error:
            self.refusal = str(error)
            return False
        running = []
        for new in changes:
            tensor = tensors[new.tensor]
            for place in places.get(new.tensor, ()) if new.change.changes else ():
                if place.has_all_of(tensor) and new.change.kind == Kind.SPARSE:
                    elements = place.target.view(-1)[new.first :]
                    running += in_pool(new.change.apply, [elements])
                else:
                    _write(place, tensor, new)
        results(running)
        changed = {_kind(new.tensor) for new in changes if new.change.changes}
        if changed <= self._proven:
            return True
        self._in_doubt = changed, fingerprints(self._model)
        return False

    def prove(self) -> None:
        """Compare what `write` did with the same version, which was loaded in full after it."""
        if self._in_doubt is None:
            return
        (changed, written), self._in_doubt = self._in_doubt, None
        loaded = fingerprints(self._model)
        different = sorted(name for name in written.keys() | loaded if written.get(name) != loaded.get(name))
        if different:
            self.refusal = f"{different[0]} is another one after a full load"
        else:
            self._proven |= changed

    def _traced(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, Sequence[Place]]:
        """Return where each tensor goes. The parameters may have moved since. Errors: UntraceableLoad."""
        addresses = {name: tensor.data_ptr() for name, tensor in self._model.named_parameters()}
        if self._places is None or addresses != self._addresses:
            self._proven.clear()
            self._places, self._addresses = trace(self._model, tensors), addresses
        return self._places


def _write(place: Place, tensor: torch.Tensor, new: TensorChange) -> None:
    """Write what is new in a tensor to one place."""
    if new.change.kind == Kind.FULL:
        place.copy(tensor)
        return
    integers = INTEGERS[tensor.element_size()]
    for positions, values in _changed(new.change, integers, place.target.device):
        place.write(positions + new.first, values)


def fingerprints(model: torch.nn.Module) -> dict[str, int]:
    """Return a checksum of each tensor that the modules of a model have, also in objects of vLLM, by name."""
    found = {}
    seen: set[int] = set()
    for module_name, module in model.named_modules():
        attributes = {**vars(module), **module._parameters, **module._buffers}
        for name, tensor in _tensors(module_name, attributes, seen):
            if tensor.numel() and not tensor.is_meta:
                found[name] = _fingerprint(tensor.detach())
    return found


def _tensors(owner: str, attributes: Mapping[str, Any], seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors among attributes, and those in containers and in objects of vLLM among them.

    seen: ids of the containers and objects that were looked into.
    """
    for key, value in attributes.items():
        if key in UNRELATED:
            continue
        name = f"{owner}.{key}"
        if isinstance(value, torch.Tensor):
            yield name, value
        elif id(value) not in seen:
            parts = _parts(value)
            if parts:
                seen.add(id(value))
                yield from _tensors(name, parts, seen)


def _parts(value: Any) -> Mapping[str, Any]:
    """Return what a container or an object of vLLM consists of; modules are looked into elsewhere."""
    if isinstance(value, list | tuple):
        return {str(number): each for number, each in enumerate(value)}
    if isinstance(value, dict):
        return {str(key): each for key, each in value.items()}
    if isinstance(value, torch.nn.Module) or not type(value).__module__.startswith("vllm."):
        return {}
    return getattr(value, "__dict__", {})


def _fingerprint(tensor: torch.Tensor) -> int:
    if tensor.device.type == "cpu":
        return digest(tensor.contiguous().view(-1).view(torch.uint8))
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % WORD_BYTES))
    return checksum(padded.view(torch.int64))


def _changed(
    change: Change, dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the positions, [N] int64, and the values of the elements that a sparse change carries.

    The gaps are added up on the device, so that they cross the bus with one byte each.
    """
    gaps = torch.from_numpy(change.gaps.packed).to(device)
    values = torch.from_numpy(change.values).view(dtype).to(device)
    before, done = 0, 0
    for part in gaps.split(CHUNK_ELEMENTS):
        ends = part.cumsum(0, dtype=torch.int64) + before
        before = int(ends[-1])
        sums = ends[part != LONG]
        yield (
            sums + torch.arange(done, done + len(sums), device=device),
            values[done : done + len(sums)],
        )
        done += len(sums)


def _kind(name: str) -> str:
    """Return the name of a tensor without the numbers of layers and experts."""
    return re.sub(r"\d+", "#", name)
