"""The weights are copied beside the gradients of the next step, and before its update changes them."""

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from learner.fakes import config_with, contrast
from slipstream.learner.broadcast.snapshot import Snapshot
from slipstream.learner.checkpoints.checkpoint import CheckpointWriter
from slipstream.learner.lockstep import Lockstep
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.model import Policy
from slipstream.learner.ranks.ranks import Alone
from slipstream.learner.training.step import TrainingStep
from slipstream.weights.compiled import copy_changes
from slipstream.weights.threads import BACKGROUND_NICENESS

SECONDS = 20.0


class SlowCopies:
    """Copies of weights that stand still after the first tensor, until `go` is set, or that fail."""

    def __init__(self, policy: Policy) -> None:
        self._named_tensors = policy.named_tensors
        self.fails = False
        self.copying = threading.Event()
        self.go = threading.Event()

    def __call__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for number, named in enumerate(self._named_tensors()):
            yield named
            if number == 0:
                self.copying.set()
                assert self.go.wait(SECONDS)
                if self.fails:
                    raise RuntimeError("out of memory")


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


class NotedPriorities:
    """Copies of weights that note the priority of the thread that copies."""

    def __init__(self, policy: Policy) -> None:
        self._named_tensors = policy.named_tensors
        self.niceness: list[int] = []

    def __call__(self) -> Iterator[tuple[str, torch.Tensor]]:
        self.niceness.append(niceness())
        yield from self._named_tensors()


def weights_of(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in policy.named_tensors()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(other[name], one[name]) for name in one)


@pytest.mark.parametrize("deltas", [True, False])
def test_a_step_computes_gradients_while_the_weights_are_copied_and_changes_them_afterwards(
    policy: Policy, tmp_path: Path, deltas: bool
) -> None:
    training, snapshot = TrainingStep(policy, config_with()), Snapshot(policy, Alone(), deltas=deltas)
    lockstep = Lockstep(Alone(), training, snapshot, CheckpointWriter(tmp_path, Alone()))
    snapshot.take()
    first = weights_of(policy)

    async def step(version: int) -> None:
        await lockstep.train([contrast("a")], version=version, stopped=lambda: False, unvaried_share=None)

    async def run() -> None:
        await step(0)
        second = weights_of(policy)
        assert not equal(first, second)
        slow = policy.named_tensors = SlowCopies(policy)  # type: ignore[method-assign]
        await lockstep.begin_snapshot()
        assert await asyncio.to_thread(slow.copying.wait, SECONDS)
        training_on = asyncio.create_task(step(1))
        parameters = list(policy.model.parameters())
        async with asyncio.timeout(SECONDS):
            while not all(p.grad is not None for p in parameters):  # noqa: ASYNC110 (it is in a thread)
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert not training_on.done()
        slow.go.set()
        await training_on
        assert lockstep.copy_wait_seconds() >= 0.1
        assert lockstep.copy_wait_seconds() == 0
        await lockstep.settle_snapshot()
        assert equal(snapshot.tensors, second)
        del policy.named_tensors  # type: ignore[attr-defined]
        assert not equal(second, weights_of(policy))

    asyncio.run(asyncio.wait_for(run(), 3 * SECONDS))


def test_a_copy_that_fails_raises_its_error_where_it_is_awaited_and_holds_up_no_step(
    policy: Policy, tmp_path: Path
) -> None:
    snapshot = Snapshot(policy, Alone())
    lockstep = Lockstep(
        Alone(), TrainingStep(policy, config_with()), snapshot, CheckpointWriter(tmp_path, Alone())
    )
    slow = policy.named_tensors = SlowCopies(policy)  # type: ignore[method-assign]
    slow.fails = True
    slow.go.set()

    async def run() -> None:
        await lockstep.begin_snapshot()
        with pytest.raises(RuntimeError, match="out of memory"):
            await lockstep.settle_snapshot()
        await lockstep.train([contrast("a")], version=0, stopped=lambda: False, unvaried_share=None)

    asyncio.run(asyncio.wait_for(run(), 3 * SECONDS))


def test_a_second_copy_begins_after_the_first(policy: Policy) -> None:
    snapshot = Snapshot(policy, Alone())
    slow = policy.named_tensors = SlowCopies(policy)  # type: ignore[method-assign]
    snapshot.begin()
    assert slow.copying.wait(SECONDS)
    slow.copying.clear()
    second = threading.Thread(target=snapshot.take)
    second.start()
    assert not slow.copying.wait(0.2)
    slow.go.set()
    second.join(SECONDS)
    assert slow.copying.is_set()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities on Linux only")
@pytest.mark.skipif(
    os.getpriority(os.PRIO_PROCESS, 0) >= BACKGROUND_NICENESS, reason="the tests run in the background"
)
@pytest.mark.parametrize("background", [True, False])
def test_a_copy_beside_training_gives_way_to_it(
    policy: Policy, background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = Snapshot(policy, Alone(), background=background)
    snapshot.take()
    compares: set[int] = set()

    def noted(*arguments: Any) -> tuple[int, int, int]:
        compares.add(niceness())
        return copy_changes(*arguments)

    monkeypatch.setattr("slipstream.weights.delta.copy_changes", noted)
    priorities = policy.named_tensors = NotedPriorities(policy)  # type: ignore[method-assign]
    own = niceness()
    snapshot.take()  # nothing happens beside it
    assert priorities.niceness == [own]
    assert compares == {own}
    compares.clear()
    snapshot.begin()
    snapshot.wait()
    expected = BACKGROUND_NICENESS if background else own
    assert priorities.niceness[1:] == [expected]
    assert compares == {expected}


def test_weights_may_change_after_a_copy_that_fails_because_nothing_reads_them_then(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = Snapshot(policy, Alone())
    snapshot.take()
    compare_on = threading.Event()

    def slow(*arguments: Any) -> tuple[int, int, int]:
        assert compare_on.wait(SECONDS)
        return copy_changes(*arguments)

    monkeypatch.setattr("slipstream.weights.delta.copy_changes", slow)
    failing = policy.named_tensors = SlowCopies(policy)  # type: ignore[method-assign]
    failing.fails = True
    failing.go.set()
    snapshot.begin()
    finished = threading.Thread(target=snapshot.finished)
    finished.start()
    finished.join(0.3)
    assert finished.is_alive()
    compare_on.set()
    finished.join(SECONDS)
    assert not finished.is_alive()
    with pytest.raises(RuntimeError, match="out of memory"):
        snapshot.wait()


def test_a_copy_in_bfloat16_of_weights_in_float32_is_exact(tiny_dir: Path) -> None:
    policy = load_policy(tiny_dir, source=tiny_dir, device=torch.device("cpu"), dtype=torch.bfloat16)
    snapshot = Snapshot(policy, Alone())
    for _ in range(3):
        snapshot.take()
        assert all(tensor.dtype == torch.bfloat16 for tensor in snapshot.tensors.values())
        for name, weight in policy.named_tensors():
            assert weight.dtype == torch.float32
            assert torch.equal(snapshot.tensors[name], weight.detach().to(torch.bfloat16))
        with torch.no_grad():
            for _, weight in policy.named_tensors():
                weight += 1e-3 * torch.randn_like(weight)
