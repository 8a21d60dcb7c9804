"""The copy beside the weights is exactly the learner's, after any sequence of updates, or there is none."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream.records import NO_VERSION
from slipstream.weights.base_copy import BaseCopy
from slipstream.weights.changes import ChangeLog
from slipstream.weights.delta import bits
from slipstream.weights.group import TransferError
from slipstream.weights.last_deadline import no_progress
from slipstream.weights.manifest import plan
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
        self._next = 0

    def begin(self, tensor: torch.Tensor, **_: int) -> Callable[[], None]:
        bucket, self._next = self._next, self._next + 1
        if self._wire.cut_at == bucket:
            raise TransferError("the connection was cut")
        arrived = self._wire.sent[bucket].clone()
        self._wire.damage(bucket, arrived)
        tensor.copy_(arrived)
        return no_progress


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


def same(base: BaseCopy, learner: Learner) -> bool:
    return base.tensors.keys() == learner.weights.keys() and all(
        (bits(base.tensors[name]) == bits(weight)).all() for name, weight in learner.weights.items()
    )


def test_a_full_version_and_then_deltas() -> None:
    learner, wire, base = Learner(), Wire(), BaseCopy()
    assert learner.send_to(wire, base) == "full"
    for _ in range(5):
        learner.train(0.02)
        assert learner.send_to(wire, base) == "delta"
        assert base.version == learner.version
        assert same(base, learner)


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
def test_a_delta_that_is_cut_or_damaged_on_its_way_leaves_the_copy(bucket: int) -> None:
    learner, wire, base = Learner(), Wire(), BaseCopy()
    learner.send_to(wire, base)
    learner.train(0.15)
    before = {name: tensor.clone() for name, tensor in base.tensors.items()}

    def flip(number: int, arrived: torch.Tensor) -> None:
        arrived[11] ^= 1 if number == bucket else 0

    wire.damage = flip
    with pytest.raises(TransferError, match="arrived damaged"):
        learner.send_to(wire, base)
    wire.damage, wire.cut_at = lambda _bucket, _bytes: None, bucket
    with pytest.raises(TransferError, match="cut"):
        learner.send_to(wire, base)
    assert base.version == 0
    assert all((bits(base.tensors[name]) == bits(before[name])).all() for name in before)
    wire.cut_at = None
    assert learner.send_to(wire, base) == "delta"
    assert same(base, learner)


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
    st.tuples(st.sampled_from(["send", "send to one", "cut", "damage", "full", "restart"]), st.just(0.0)),
)


def change_chunk(number: int, arrived: torch.Tensor) -> None:
    arrived[0] ^= 255


@settings(max_examples=80, deadline=None)
@given(st.lists(MOVES, min_size=4, max_size=25))
def test_after_any_sequence_of_updates_a_copy_is_the_learners_or_absent(moves: list[Move]) -> None:
    learner, wire = Learner(), Wire()
    copies, history = [BaseCopy(), BaseCopy()], {}

    def remember() -> None:
        history[learner.version] = {name: weight.clone() for name, weight in learner.weights.items()}

    remember()
    for move, share in [*moves, ("send", 0.0)]:
        wire.damage, wire.cut_at = lambda _bucket, _bytes: None, None
        if move == "train":
            learner.train(share)
            remember()
        elif move == "restart":
            copies[0] = BaseCopy()
        elif move in ("cut", "damage"):
            wire.cut_at = 0 if move == "cut" else None
            wire.damage = change_chunk
            with pytest.raises(TransferError):
                learner.send_to(wire, *copies)
        else:
            learner.send_to(wire, *copies[: 1 if move == "send to one" else 2], full=move == "full")
        for copy in copies:
            if copy.version != NO_VERSION:
                learners = history[copy.version]
                assert all((bits(copy.tensors[name]) == bits(learners[name])).all() for name in learners)
    assert all(same(copy, learner) for copy in copies)


def test_versions_travel_over_threads_as_well() -> None:
    learner, wire, base = Learner(), Wire(), BaseCopy()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(learner.send_to, wire, base).result(10) == "full"
    assert same(base, learner)
