"""After a load that failed at any point, the receiver writes no delta in place before a full load.

vLLM's layerwise reload is a fake that loads at its end, so that its end can fail; the receiver is real.
"""

from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rollout.test_in_place import change
from slipstream.weights.base_copy import Difference, TensorChange
from slipstream.weights.group import TransferError

pytestmark = pytest.mark.vllm
NAMES = ("a.weight", "b.weight")
Tensors = dict[str, torch.Tensor]


class Reloaded(torch.nn.Module):
    """A model whose tensors are loaded when the reload is finalized."""

    def __init__(self) -> None:
        super().__init__()
        for name in NAMES:
            layer = torch.nn.Module()
            layer.register_parameter("weight", torch.nn.Parameter(torch.zeros(40, 40), False))
            self.add_module(name[0], layer)
        self.waiting: list[tuple[torch.Tensor, torch.Tensor]] | None = None
        self.fails = False

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load at once, or during a reload at its end."""
        for name, tensor in weights:
            parameter = self.get_parameter(name)
            if self.waiting is None:
                parameter.data.copy_(tensor)
            else:
                self.waiting.append((parameter, tensor))
        return set(NAMES)

    def initialize(self) -> None:
        self.waiting = []

    def finalize(self) -> None:
        waiting, self.waiting = self.waiting or [], None
        for number, (parameter, tensor) in enumerate(waiting):
            if self.fails and number == 1:
                self.fails = False
                raise RuntimeError("out of memory")
            parameter.data.copy_(tensor)


class Receiving:
    """The receiver of an engine, and what a learner sends to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from slipstream.rollout import weight_receiver as module

        monkeypatch.setattr(module, "initialize_layerwise_reload", lambda model: model.initialize())
        monkeypatch.setattr(module, "finalize_layerwise_reload", lambda model, _: model.finalize())
        self.model = Reloaded()
        self.receiver: Any = module.WeightReceiver(
            SimpleNamespace(),
            SimpleNamespace(parallel_config=SimpleNamespace(rank=0), model_config=SimpleNamespace()),
            torch.device("cpu"),
            self.model,
        )
        self.version = 0

    def full(self) -> None:
        """Let a full version arrive."""
        base = self.receiver.base
        base.tensors = {name: torch.randn(40, 40) for name in NAMES}
        base.take_difference()
        self._arrived()

    def delta(self) -> None:
        """Let a delta arrive that changes every tensor."""
        base, changes = self.receiver.base, []
        for name, tensor in base.tensors.items():
            new = tensor.clone()
            new.view(-1)[self.version :: 50] += 1.0
            changes.append(TensorChange(name, 0, change(tensor, new)))
        base._difference = Difference(base.mark, changes)
        self._arrived()

    def _arrived(self) -> None:
        self.version += 1
        self.receiver.base.version, self.receiver.base.mark = self.version, object()
        self.receiver._staging = Future()
        self.receiver._staging.set_result(None)

    def load(self) -> bool:
        """Load what arrived, as the engine does; return whether it was written in place."""
        self.receiver.start_weight_update()
        info = {"manifest": b"", "version": self.version, "staged": True}
        self.receiver.update_weights(info)
        self.receiver.finish_weight_update()
        return bool(self.receiver.written)

    def right(self) -> bool:
        """Whether the model has the tensors of the version that arrived last."""
        arrived = self.receiver.base.tensors.items()
        return all(torch.equal(self.model.get_parameter(name), tensor) for name, tensor in arrived)


@pytest.fixture
def receiving(monkeypatch: pytest.MonkeyPatch) -> Receiving:
    """Return a receiver that writes deltas in place."""
    made = Receiving(monkeypatch)
    made.full()
    assert not made.load()
    for written in (False, True):
        made.delta()
        assert made.load() == written
        assert made.right()
    return made


def test_a_delta_after_an_end_that_failed_is_loaded_in_full(receiving: Receiving) -> None:
    receiving.full()
    receiving.model.fails = True
    with pytest.raises(RuntimeError, match="out of memory"):
        receiving.load()
    receiving.receiver.finish_weight_update()  # the engine ends the update that it has not committed
    receiving.delta()
    assert not receiving.load()
    assert receiving.right()
    receiving.delta()
    assert receiving.load()
    assert receiving.right()


def test_a_delta_after_a_load_that_failed_is_loaded_in_full(
    receiving: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> set[str]:
        raise RuntimeError("out of memory")

    receiving.full()
    with monkeypatch.context() as patch:
        patch.setattr(receiving.model, "load_weights", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            receiving.load()
    receiving.delta()
    assert not receiving.load()
    assert receiving.right()


def test_loaders_that_name_no_tensor_and_loaders_that_load_none_are_told_apart(
    receiving: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiving.full()
    with monkeypatch.context() as patch:
        patch.setattr(receiving.model, "load_weights", lambda _: set())
        with pytest.raises(TransferError, match=r"lacks a\.weight, b\.weight"):
            receiving.load()
    load_weights = receiving.model.load_weights
    monkeypatch.setattr(receiving.model, "load_weights", lambda weights: load_weights(weights) and None)
    receiving.full()
    assert not receiving.load()
    assert receiving.right()


def test_vllm_may_begin_an_update_after_one_that_ended_or_failed(
    receiving: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiving.full()
    assert not receiving.receiver.updating
    receiving.receiver.start_weight_update()
    assert receiving.receiver.updating
    with pytest.raises(ValueError, match="unknown"):
        receiving.receiver.update_weights({"unknown": 1})
    assert not receiving.receiver.updating
    receiving.load()
    assert not receiving.receiver.updating


def test_a_delta_after_one_that_was_never_loaded_is_loaded_in_full(receiving: Receiving) -> None:
    receiving.delta()
    receiving.delta()
    assert not receiving.load()
    assert receiving.right()


def test_errors_of_the_comparison_cost_no_update(
    receiving: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> dict[str, int]:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr("slipstream.rollout.in_place.fingerprints", fail)
    receiving.model.a.weight.data = receiving.model.a.weight.data.clone()  # the proof begins anew
    for _ in range(3):
        receiving.delta()
        assert not receiving.load()
        assert receiving.right()
