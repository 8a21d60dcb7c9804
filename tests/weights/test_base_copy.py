"""The copy beside the weights is exactly the learner's, after any sequence of updates, or there is none."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream.records import NO_VERSION
from slipstream.weights.base_copy import BaseCopy
from slipstream.weights.changes import ChangeLog
from slipstream.weights.compiled import compiled, write_elements
from slipstream.weights.delta import bits, compile_loops, digest
from slipstream.weights.group import TransferError
from slipstream.weights.last_deadline import no_progress
from slipstream.weights.manifest import plan
from slipstream.weights.threads import BACKGROUND_NICENESS
from slipstream.weights.transfer import send

CPU = torch.device("cpu")
BUCKET = 512
SHAPES = {"a": (20, 30), "b": (500,), "scalar": (), "empty": (0, 4), "c": (40,)}


class Wire:
    """A group of two ends in one process: what one end sends is what the other one receives."""

    def __init__(self) -> None:
        self.sent: list[torch.Tensor] = []
        self.damage: Callable[[int, torch.Tensor], None] = lambda _bucket, _bytes: None
        self.cut_at: int | None = None
        self.error: Exception = TransferError("the connection was cut")

    def sender(self) -> "Wire":
        self.sent = []
        return self

    def begin(self, tensor: torch.Tensor, **_: int) -> Callable[[], None]:
        self.sent.append(tensor.clone())
        return no_progress

    def receiver(self) -> "Receiver":
        return Receiver(self)


class Receiver:
    """The other end."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._begun = 0
        self.arrived = 0

    def begin(self, tensor: torch.Tensor, **_: int) -> Callable[[], None]:
        bucket, self._begun = self._begun, self._begun + 1

        def arrive() -> None:
            if self._wire.cut_at == bucket:
                raise self._wire.error
            arrived = self._wire.sent[bucket].clone()
            self._wire.damage(bucket, arrived)
            tensor.copy_(arrived)
            self.arrived += 1

        return arrive


class Learner:
    """Weights with a log of their changes, and what the publisher does with them."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.weights = {
            name: torch.randn(shape, generator=generator).to(torch.bfloat16) for name, shape in SHAPES.items()
        }
        self.log = ChangeLog(self.weights)
        self.full = plan(SHAPES.items(), dtype=torch.bfloat16, bucket_bytes=BUCKET, model_fingerprint="f")
        self.version = 0
        self.log.close(0)
        self._random = torch.Generator().manual_seed(2)

    def train(self, share: float) -> None:
        """Change this share of the elements of each weight, and make it the next version."""
        for name, weight in self.weights.items():
            new = weight.clone()
            chosen = torch.rand(weight.shape, generator=self._random) < share
            new[chosen] += 1
            self.log.update(name, new)
        self.version += 1
        self.log.close(self.version)

    def copies(self) -> dict[str, torch.Tensor]:
        return {name: weight.clone() for name, weight in self.weights.items()}

    def back_to(self, weights: dict[str, torch.Tensor]) -> None:
        """Make the weights of an earlier version the next version."""
        for name, weight in weights.items():
            self.log.update(name, weight)
        self.version += 1
        self.log.close(self.version)

    def send_to(self, wire: Wire, *bases: BaseCopy, full: bool = False) -> str:
        """Bring these copies to the version by one broadcast; return what was sent."""
        oldest = NO_VERSION if full else min(base.version for base in bases)
        delta = self.log.since(oldest, self.full, bucket_bytes=BUCKET) if oldest != NO_VERSION else None
        manifest, tensors = (self.full, self.weights) if delta is None else (delta.manifest, delta)
        send(wire.sender(), manifest, tensors, version=self.version, device=CPU)  # type: ignore[arg-type]
        first_error: TransferError | None = None
        for base in bases:
            try:
                base.receive(
                    wire.receiver(),  # type: ignore[arg-type]
                    manifest,
                    version=self.version,
                    base=NO_VERSION if delta is None else delta.base,
                    device=CPU,
                )
            except TransferError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return "full" if delta is None else "delta"


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((bits(one) == bits(other)).all())


def same(base: BaseCopy, learner: Learner) -> bool:
    return base.tensors.keys() == learner.weights.keys() and all(
        equal(base.tensors[name], weight) for name, weight in learner.weights.items()
    )


def test_a_full_version_and_then_deltas() -> None:
    learner, wire, base = Learner(), Wire(), BaseCopy()
    assert learner.send_to(wire, base) == "full"
    for _ in range(5):
        learner.train(0.02)
        assert learner.send_to(wire, base) == "delta"
        assert base.version == learner.version
        assert same(base, learner)


@pytest.mark.parametrize("warm", [True, False])
def test_a_first_delta_compiles_nothing_after_the_warm_up(
    warm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numba.core.event import install_recorder  # not above: vLLM does not start after an import of numba

    learner, wire, base = Learner(), Wire(), BaseCopy()
    learner.send_to(wire, base)
    learner.train(0.02)
    learner.send_to(wire, base)  # this compiles the loops of the learner
    anew = compiled(vars(write_elements)["__wrapped__"])
    monkeypatch.setattr("slipstream.weights.delta.write_elements", anew)
    if warm:
        compile_loops([2])
    learner.train(0.02)
    with install_recorder("numba:compile") as compiling:
        assert learner.send_to(wire, base) == "delta"
    assert same(base, learner)
    assert bool(compiling.buffer) != warm


def test_one_delta_serves_copies_of_several_versions() -> None:
    learner, wire = Learner(), Wire()
    copies = [BaseCopy() for _ in range(4)]
    learner.send_to(wire, *copies)
    for newer in range(4):
        learner.train(0.02)
        learner.send_to(wire, *copies[newer:])
    learner.train(0.0)
    assert [copy.version for copy in copies] == [1, 2, 3, 4]
    assert learner.send_to(wire, *copies) == "delta"
    assert all(same(copy, learner) for copy in copies)


def test_a_delta_is_refused_without_its_base() -> None:
    learner, wire, base = Learner(), Wire(), BaseCopy()
    learner.send_to(wire, base)
    learner.train(0.02)
    delta = learner.log.since(0, learner.full, bucket_bytes=BUCKET)
    assert delta is not None
    send(wire.sender(), delta.manifest, delta, version=9, device=CPU)  # type: ignore[arg-type]

    def receive(copy: BaseCopy, *, version: int, oldest: int) -> None:
        copy.receive(wire.receiver(), delta.manifest, version=version, base=oldest, device=CPU)  # type: ignore[arg-type]

    with pytest.raises(TransferError, match="a delta from version 0 to 9 does not fit: no version is kept"):
        receive(BaseCopy(), version=9, oldest=0)
    with pytest.raises(TransferError, match="from version 1 to 9 does not fit: version 0 is kept here"):
        receive(base, version=9, oldest=1)
    base.version = 12
    with pytest.raises(TransferError, match="version 12 is kept here"):
        receive(base, version=9, oldest=0)


def test_a_delta_on_other_bytes_is_refused_and_the_copy_given_up() -> None:
    learner, wire, base = Learner(), Wire(), BaseCopy()
    learner.send_to(wire, base)
    bits(base.tensors["b"])[17] ^= 1  # as if an earlier learner had trained this version otherwise
    learner.train(0.02)
    with pytest.raises(TransferError, match="b has another digest than the learner's"):
        learner.send_to(wire, base)
    assert (base.version, base.tensors) == (NO_VERSION, {})
    assert learner.send_to(wire, base) == "full"
    assert same(base, learner)


def test_other_tensors_are_refused() -> None:
    learner, wire, base = Learner(), Wire(), BaseCopy()
    learner.send_to(wire, base)
    base.tensors["renamed"] = base.tensors.pop("b")
    learner.train(0.02)
    with pytest.raises(TransferError, match="has other tensors: b, renamed"):
        learner.send_to(wire, base)
    assert base.version == NO_VERSION


@pytest.mark.parametrize("bucket", [0, 1])
def test_a_delta_that_is_cut_or_damaged_on_its_way_leaves_a_copy_for_the_next_one(bucket: int) -> None:
    learner, wire, base = Learner(), Wire(), BaseCopy()
    learner.send_to(wire, base)
    versions = [learner.copies()]
    learner.train(0.15)
    versions.append(learner.copies())

    def flip(number: int, arrived: torch.Tensor) -> None:
        arrived[11] ^= 1 if number == bucket else 0

    def damaged() -> None:
        wire.damage = flip
        with pytest.raises(TransferError, match="arrived damaged"):
            learner.send_to(wire, base)
        wire.damage = lambda _bucket, _bytes: None

    def lost() -> None:
        wire.cut_at = bucket
        with pytest.raises(TransferError, match="cut"):
            learner.send_to(wire, base)
        wire.cut_at = None

    for fault in (damaged, lost):
        fault()
        assert base.version == 0
        assert all(
            any(equal(tensor, version[name]) for version in versions) for name, tensor in base.tensors.items()
        )
    learner.train(0.0)
    learner.back_to(versions[0])
    assert learner.send_to(wire, base) == "delta"
    assert base.version == 3
    assert same(base, learner)


def test_a_copy_of_which_a_part_is_newer_refuses_a_delta_to_a_version_before_that() -> None:
    learner, wire, base = Learner(), Wire(), BaseCopy()
    learner.send_to(wire, base)
    learner.train(0.1)
    learner.train(0.1)
    wire.cut_at = 1
    with pytest.raises(TransferError, match="cut"):
        learner.send_to(wire, base)
    wire.cut_at, learner.version = None, 1
    with pytest.raises(TransferError, match="version 0 with a part of version 2 is kept here"):
        learner.send_to(wire, base)


def test_a_damaged_delta_is_received_to_its_end_because_others_receive_it() -> None:
    learner, wire, damaged = Learner(), Wire(), BaseCopy()
    learner.send_to(wire, damaged)
    bits(damaged.tensors["a"])[17] ^= 1
    learner.train(0.15)
    delta = learner.log.since(0, learner.full, bucket_bytes=1)
    assert delta is not None
    assert len(delta.manifest.bucket_bytes) == len(SHAPES)
    send(wire.sender(), delta.manifest, delta, version=1, device=CPU)  # type: ignore[arg-type]
    receiver = wire.receiver()
    with pytest.raises(TransferError, match="a has another digest"):
        damaged.receive(receiver, delta.manifest, version=1, base=0, device=CPU)  # type: ignore[arg-type]
    assert receiver.arrived == len(SHAPES)


def test_a_copy_survives_any_error_of_a_transfer_and_none_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, wire, base = Learner(), Wire(), BaseCopy()
    learner.send_to(wire, base)
    learner.train(0.15)
    wire.cut_at, wire.error = 1, MemoryError("of the device")
    with pytest.raises(MemoryError, match="of the device"):
        learner.send_to(wire, base)
    assert base.version == 0
    wire.cut_at = None
    with monkeypatch.context() as patch:
        patch.setattr("slipstream.weights.base_copy.digest", no_memory)
        with pytest.raises(TransferError, match="version 1 does not fit: of the host"):
            learner.send_to(wire, base)
    assert base.version == NO_VERSION
    assert learner.send_to(wire, base) == "full"
    assert same(base, learner)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
def test_the_work_of_a_delta_gives_way_to_an_engine_that_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, wire, base = Learner(), Wire(), BaseCopy()
    learner.send_to(wire, base, full=True)
    learner.train(0.1)
    priorities = []

    def noting(tensor: torch.Tensor) -> int:
        priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return digest(tensor)

    monkeypatch.setattr("slipstream.weights.base_copy.digest", noting)
    learner.send_to(wire, base)
    assert same(base, learner)
    assert len(priorities) == len(SHAPES)
    assert min(priorities) >= BACKGROUND_NICENESS


def no_memory(_: torch.Tensor) -> int:
    raise MemoryError("of the host")


def test_the_weights_that_an_engine_loaded_are_no_base_after_a_failed_transfer() -> None:
    learner, wire, base = Learner(), Wire(), BaseCopy()
    learner.send_to(wire, base)
    loaded = base.mark
    learner.train(0.15)
    learner.send_to(wire, base)
    difference = base.take_difference()
    assert difference is not None
    assert difference.since is loaded
    loaded, wire.cut_at = base.mark, 0
    learner.train(0.15)
    with pytest.raises(TransferError, match="cut"):
        learner.send_to(wire, base)
    wire.cut_at = None
    learner.send_to(wire, base)
    difference = base.take_difference()
    assert difference is not None
    assert difference.since is not loaded


def test_a_full_version_that_is_cut_leaves_no_copy() -> None:
    learner, wire, base = Learner(), Wire(), BaseCopy()
    learner.send_to(wire, base)
    wire.cut_at = 1
    with pytest.raises(TransferError, match="cut"):
        learner.send_to(wire, base, full=True)
    assert base.version == NO_VERSION


Move = tuple[str, float]
MOVES = st.one_of(
    st.tuples(st.just("train"), st.sampled_from([0.0, 0.001, 0.02, 0.3, 1.0])),
    st.tuples(st.sampled_from(["cut", "damage"]), st.sampled_from([0, 1, 2])),
    st.tuples(st.sampled_from(["send", "send to one", "full", "restart", "go back"]), st.just(0.0)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(MOVES, min_size=4, max_size=25))
def test_after_any_sequence_of_updates_a_copy_is_the_learners_or_absent(moves: list[Move]) -> None:
    learner, wire = Learner(), Wire()
    copies, history = [BaseCopy(), BaseCopy()], {0: learner.copies()}
    failed = {0: False, 1: False}
    """Whether a transfer to this copy has failed since it had a version."""
    for move, number in [*moves, ("send", 0.0)]:
        wire.damage, wire.cut_at = lambda _bucket, _bytes: None, None
        if move == "train":
            learner.train(number)
        elif move == "go back":
            learner.back_to(history[max(0, learner.version - 2)])
        elif move == "restart":
            copies[0], failed[0] = BaseCopy(), False
        elif move in ("cut", "damage"):
            wire.cut_at = number if move == "cut" else None
            if move == "damage":
                wire.damage = lambda bucket, arrived, at=number: arrived[0].bitwise_xor_(255 * (bucket == at))
            try:
                learner.send_to(wire, *copies)
                failed = {0: False, 1: False}  # it had fewer buckets
            except TransferError:
                failed = {0: True, 1: True}
        else:
            several = copies[: 1 if move == "send to one" else 2]
            learner.send_to(wire, *several, full=move == "full")
            failed |= dict.fromkeys(range(len(several)), False)
        history[learner.version] = learner.copies()
        for place, copy in enumerate(copies):
            if copy.version != NO_VERSION and not failed[place]:
                assert all(
                    equal(copy.tensors[name], tensor) for name, tensor in history[copy.version].items()
                )
    assert all(same(copy, learner) for copy in copies)


def test_versions_travel_over_threads_as_well() -> None:
    learner, wire, base = Learner(), Wire(), BaseCopy()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(learner.send_to, wire, base).result(10) == "full"
    assert same(base, learner)
