"""The published tensors of one rank of several, without gathering the parts of other ranks.

A rank has some rows of each sharded parameter. They are published as a part of the tensor. The rows of a
parameter that holds all experts of a layer are whole experts, which a checkpoint names one by one. What has
another form in a checkpoint is gathered, and published by rank 0.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor

from slipstream.learner.policy.checkpoint_form import checkpoint_form, layers_of
from slipstream.learner.policy.model import Policy, whole
from slipstream.weights.manifest import Part

EXPERT = re.compile(r"(.*\.experts\.)(\d+)(\..+)")
Layer = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTensor:
    """A tensor by its checkpoint name, or a part of one."""

    name: str
    tensor: torch.Tensor
    part: Part | None = None


class OwnTensors:
    """The published tensors of this rank. Sharded parameters keep their memory, so this is made once."""

    def __init__(self, policy: Policy, rank: int) -> None:
        self._model = policy.model
        self._rank = rank
        layers = layers_of(policy.model.named_parameters())
        self._layers = [(layer, _Forms(policy.model, layer)) for layer in layers]
        self.gathers = any(forms.gathered for _, forms in self._layers)
        """Whether some tensors are gathered, so that all ranks have to iterate together."""

    def __iter__(self) -> Iterator[OwnTensor]:
        """Yield the tensors in the order of the model. Some are views of parameters: do not change them."""
        for layer, forms in self._layers:
            yield from self._of_layer(layer, forms)

    def _of_layer(self, layer: Layer, forms: "_Forms") -> Iterator[OwnTensor]:
        for name, source in forms.same.items():
            yield from self._rows(name, layer[source])
        if forms.experts:
            yield from self._experts({name: layer[name] for name in forms.experts})
        if forms.gathered:
            gathered = {name: whole(layer[name]) for name in forms.gathered}
            if not self._rank:
                for name, tensor in checkpoint_form(self._model, gathered).items():
                    yield OwnTensor(name=name, tensor=tensor)

    def _rows(self, name: str, parameter: torch.Tensor) -> Iterator[OwnTensor]:
        """Yield this rank's rows of a parameter, if it has some."""
        if not isinstance(parameter, DTensor):
            if not self._rank:
                yield OwnTensor(name=name, tensor=parameter)
            return
        local = parameter.to_local()
        if local.numel():
            part = Part(tensor=name, first_row=first_row(parameter), rows=parameter.shape[0])
            yield OwnTensor(name=part.name, tensor=local, part=part)

    def _experts(self, parameters: Layer) -> Iterator[OwnTensor]:
        """Yield this rank's experts."""
        first = {first_row(parameter) for parameter in parameters.values()}
        local = {name: _local(parameter) for name, parameter in parameters.items()}
        if not all(tensor.numel() for tensor in local.values()):
            return
        for name, tensor in checkpoint_form(self._model, local).items():
            yield OwnTensor(name=_renumbered(name, min(first)), tensor=tensor)


class _Forms:
    """How the parameters of a layer appear in a checkpoint, which is the same on every rank.

    same: checkpoint names of parameters with the same form, and the names of these parameters. experts:
    parameters whose rows are experts. gathered: those of any other form.
    """

    def __init__(self, model: object, layer: Layer) -> None:
        metas = {name: torch.empty(tensor.shape, device="meta") for name, tensor in layer.items()}
        form = checkpoint_form(model, metas)
        sources = {id(meta): name for name, meta in metas.items()}
        self.same = {name: sources[id(tensor)] for name, tensor in form.items() if id(tensor) in sources}
        others = {name: meta for name, meta in metas.items() if name not in self.same.values()}
        split = bool(others) and _rows_are_experts(model, others)
        sharded = all(isinstance(layer[name], DTensor) for name in others)
        self.experts = tuple(others) if split and sharded else ()
        self.gathered = () if self.experts else tuple(others)


def _rows_are_experts(model: object, metas: Layer) -> bool:
    """Return whether row i of each parameter makes expert i of the checkpoint, and nothing else."""
    rows = {meta.shape[0] for meta in metas.values()}
    form = checkpoint_form(model, metas)
    one = checkpoint_form(model, {name: meta[:1] for name, meta in metas.items()})
    if len(rows) != 1 or not all(EXPERT.fullmatch(name) for name in one):
        return False
    expected = {
        _renumbered(name, row): tensor.shape for row in range(max(rows)) for name, tensor in one.items()
    }
    return expected == {name: tensor.shape for name, tensor in form.items()}


def _renumbered(name: str, first: int) -> str:
    match = EXPERT.fullmatch(name)
    assert match is not None
    return f"{match[1]}{first + int(match[2])}{match[3]}"


def first_row(parameter: torch.Tensor) -> int:
    """Return the first row of this rank's part of a sharded parameter."""
    assert isinstance(parameter, DTensor)
    (chunk,) = parameter.__create_chunk_list__()
    row: int = chunk.offsets[0]
    return row


def _local(parameter: torch.Tensor) -> torch.Tensor:
    assert isinstance(parameter, DTensor)
    return parameter.to_local()
