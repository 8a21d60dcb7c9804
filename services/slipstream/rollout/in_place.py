"""Writes the changes of a delta into the parameters of a model, instead of loading all of its weights.

    trace    where the elements of each tensor lie in the parameters (load_trace.py)
    write    changed elements, to their places; on a GPU only they cross the bus
    prove    the first delta that changes a kind of tensor (one name, in any layer) is written, and then the
             version is loaded in full: if both lead to the same checksums of all tensors of the model,
             later changes of this kind are only written

The proof is needed because layers may keep other forms of their weights, such as a matrix that is computed
from another one. A model whose layers compute with packed copies (some CPU kernels of vLLM) is always loaded
in full, and so is one whose loader converts or computes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from slipstream.rollout.load_trace import Place, UntraceableLoad, trace
from slipstream.rollout.scattered_writes import ScatteredWrites
from slipstream.weights.base_copy import TensorChange
from slipstream.weights.delta import Kind, digest
from slipstream.weights.transfer import MULTIPLIER, WORD_BYTES, checksum

UNRELATED = {"kv_cache", "_parameters", "_buffers", "_modules"}
"""Attributes of layers that are no form of their weights, or are covered elsewhere."""
CHUNK_WORDS = 1 << 22
"""Words of a tensor on a device whose checksum is computed at once."""
Places = Mapping[str, Sequence[tuple[str, Place]]]
"""Where each tensor goes, and the kind of tensor that it is there."""
Layout = Mapping[str, tuple[torch.dtype, torch.Size]]
"""What kind of tensors a learner sends; one that was started again may send another dtype."""


class ParameterWriter:
    """Writes deltas into one model. `refusal`: why they have to be loaded in full; "" as long as they do not.

    An error while writing or comparing is a refusal as well: the full load that follows mends what it left.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.refusal = ""
        self._untraceable: Layout | None = None
        """The tensors of which the places could not be found, if that is the refusal."""
        self._model = model
        self._places: Places | None = None
        self._traced_for: tuple[Mapping[str, int], Layout] = {}, {}
        """Addresses of the parameters, and the tensors of the checkpoint, of which these are the places."""
        self._proven: set[str] = set()
        """Kinds of tensors."""
        self._in_doubt: tuple[set[str], dict[str, int]] | None = None

    def write(self, tensors: Mapping[str, torch.Tensor], changes: Sequence[TensorChange]) -> bool:
        """Write the changes; return True if no full load is needed.

        tensors: the new version, by its names in a checkpoint, contiguous in host memory. changes: what is
        new in it.
        """
        self._in_doubt = None
        layout = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
        if self._untraceable not in (None, layout):  # another learner's, which may be written
            self.refusal, self._untraceable = "", None
        if self.refusal:
            return False
        try:
            return self._write(tensors, layout, changes)
        except UntraceableLoad as error:
            self.refusal, self._untraceable = str(error), layout
        except Exception as error:  # of a device without memory, or of a tensor that has no plain one
            self.refusal = f"{type(error).__name__}: {error}"
        return False

    @torch.no_grad()
    def _write(
        self, tensors: Mapping[str, torch.Tensor], layout: Layout, changes: Sequence[TensorChange]
    ) -> bool:
        places, scattered = self._traced(tensors, layout), ScatteredWrites()
        written: set[str] = set()
        for new in changes:
            if not new.change.changes:
                continue
            tensor = tensors[new.tensor]
            for kind, place in places.get(new.tensor, ()):
                if new.change.kind == Kind.FULL:
                    place.copy(tensor)
                    written.add(kind)
                elif place.has_all_of(tensor):
                    new.change.apply(place.target.view(-1)[new.first :])
                    written.add(kind)
                else:
                    scattered.add(kind, place, new)
        written |= scattered.finish()
        if written <= self._proven:
            return True
        self._in_doubt = written, fingerprints(self._model)
        return False

    def refuse(self, reason: str) -> None:
        """Write nothing more, for this reason unless there was one before."""
        self.refusal, self._untraceable = self.refusal or reason, None

    def prove(self) -> None:
        """Compare what `write` did with the same version, which was loaded in full after it."""
        if self._in_doubt is None:
            return
        (kinds, written), self._in_doubt = self._in_doubt, None
        try:
            loaded = fingerprints(self._model)
        except Exception as error:  # of a device without memory; the model is loaded
            self.refusal = f"{type(error).__name__}: {error}"
            return
        different = _different(written, loaded)
        if different:
            self.refusal = f"{different} differs after a full load"
        else:
            self._proven |= kinds

    def _traced(self, tensors: Mapping[str, torch.Tensor], layout: Layout) -> Places:
        """Return where each tensor goes. Errors: UntraceableLoad.

        The parameters may have moved since the last call, and the tensors may be of another learner.
        """
        owned = (*self._model.named_parameters(), *self._model.named_buffers())
        addresses = {name: tensor.data_ptr() for name, tensor in owned}
        if self._places is None or (addresses, layout) != self._traced_for:
            self._proven.clear()
            before = fingerprints(self._model)
            self._places = _with_kinds(trace(self._model, tensors))
            self._traced_for = addresses, layout
            if changed := _different(before, fingerprints(self._model)):
                raise UntraceableLoad(f"a loader makes {changed} from a tensor")
        return self._places


def _different(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """Return the first name of which the fingerprint differs; "" for none."""
    return min((name for name in before.keys() | after if before.get(name) != after.get(name)), default="")


def fingerprints(model: torch.nn.Module) -> dict[str, int]:
    """Return a checksum of each tensor that the modules of a model have, also in objects of vLLM, by name."""
    checksums = {}
    seen: set[int] = set()
    for module_name, module in model.named_modules():
        attributes = {**vars(module), **module._parameters, **module._buffers}
        for name, tensor in _tensors(module_name, attributes, seen):
            if tensor.numel() and not tensor.is_meta:
                checksums[name] = _fingerprint(tensor.detach())
    return checksums


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
    """Return what a container, a function or an object of vLLM consists of; modules are a model's own."""
    if isinstance(value, list | tuple | set):
        return {str(number): each for number, each in enumerate(value)}
    if isinstance(value, dict):
        return {str(key): each for key, each in value.items()}
    if isinstance(value, partial):
        return {"call": value.func, "arguments": value.args, "keywords": value.keywords}
    if cells := getattr(value, "__closure__", None):
        return {str(number): _content(cell) for number, cell in enumerate(cells)}
    if isinstance(value, torch.nn.Module) or not type(value).__module__.startswith(("vllm.", "flashinfer.")):
        return {}
    slots = {name: getattr(value, name, None) for name in getattr(type(value), "__slots__", ())}
    return slots | getattr(value, "__dict__", {})


def _content(cell: Any) -> Any:
    """Return what a variable of a closure has; None for one that has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _fingerprint(tensor: torch.Tensor) -> int:
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    if tensor.device.type == "cpu":
        return digest(flat)
    if flat.storage_offset() % WORD_BYTES:
        flat = flat.clone()
    end = flat.numel() - flat.numel() % WORD_BYTES
    sums = [checksum(_mixed(words)) for words in flat[:end].view(torch.int64).split(CHUNK_WORDS)]
    return hash((*sums, *flat[end:].tolist()))


def _mixed(words: torch.Tensor) -> torch.Tensor:
    """Return the words with their bits mixed, one to one: two changed signs could leave a plain sum equal."""
    return (words ^ ((words >> 29) & ((1 << 35) - 1))) * MULTIPLIER


def _with_kinds(places: Mapping[str, Sequence[Place]]) -> Places:
    return {name: [(_kind(name, place), place) for place in several] for name, several in places.items()}


def _kind(name: str, place: Place) -> str:
    """Return the name of a tensor without the numbers of layers and experts, and the form of its place."""
    target = place.target
    general = re.sub(r"(?<=\.)\d+(?=\.)", "#", name)
    return f"{general} {tuple(target.shape)} {target.stride()}"
