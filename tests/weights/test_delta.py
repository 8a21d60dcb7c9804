"""A delta leads to exactly the learner's bits, or raises an error."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from slipstream.config.sections.services import LARGEST_DELTA, LOG_SHARE
from slipstream.weights import delta
from slipstream.weights.changes import ChangeLog
from slipstream.weights.compiled import copy_changes, read_elements
from slipstream.weights.delta import (
    CHUNK_ELEMENTS,
    DENSE_SHARE,
    HEADER_BYTES,
    VALUES_SHARE,
    Change,
    DamagedDelta,
    Gaps,
    Kind,
    bits,
    change_bytes,
    change_of,
    digest,
    take_over,
    union,
)
from slipstream.weights.manifest import Manifest, plan
from weights.positions import pack, unpack

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.uint8, torch.float8_e4m3fn]


def changed(tensor: torch.Tensor, positions: list[int]) -> torch.Tensor:
    """Return a copy with other bits at these positions."""
    copy = tensor.clone()
    bits(copy)[positions] ^= 1
    return copy


@settings(max_examples=200, deadline=None)
@given(st.sets(st.integers(0, 5000)))
def test_positions_are_unpacked_as_they_were_packed(positions: set[int]) -> None:
    ascending = np.array(sorted(positions), np.int64)
    packed = pack(ascending)
    assert packed.count == len(positions)
    assert unpack(packed).tolist() == ascending.tolist()


@pytest.mark.parametrize("gap", [0, 1, 253, 254, 255, 256, 509, 510, 511, 100_000])
def test_a_gap_of_any_length_is_packed(gap: int) -> None:
    positions = np.array([gap, 2 * gap + 1, 3 * gap + 2], np.int64)
    packed = pack(positions)
    assert unpack(packed).tolist() == positions.tolist()
    assert packed.nbytes == 3 * (1 + gap // 255)


@pytest.mark.parametrize(
    "damaged", [Gaps(np.array([1, 255], np.uint8), 1), Gaps(np.array([1, 2], np.uint8), 3)]
)
def test_positions_of_another_number_are_refused(damaged: Gaps) -> None:
    with pytest.raises(DamagedDelta, match="positions instead of"):
        damaged.last()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sets(st.integers(0, 2000)), max_size=4))
def test_a_union_has_each_position_once(several: list[set[int]]) -> None:
    packed = union(pack(np.array(sorted(each), np.int64)) for each in several)
    assert packed is not None
    assert unpack(packed).tolist() == sorted(set().union(*several))


def test_a_union_takes_little_memory() -> None:
    """So a rollout that comes back does not end a learner whose memory is just enough."""
    elements = 1 << 25  # the memory that each thread keeps is small beside it
    several = [pack(np.arange(start, elements, 8)) for start in range(4)]
    expected = pack(np.flatnonzero(np.arange(elements) % 8 < 4))
    union([pack(np.array([1])), pack(np.array([2]))])  # the loops are compiled
    tracemalloc.start()
    packed = union(several)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert packed is not None
    assert np.array_equal(packed.packed, expected.packed)
    assert peak < 5 * elements


def test_a_union_with_a_tensor_that_changed_everywhere_is_everything() -> None:
    assert union([pack(np.array([3], np.int64)), None]) is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=30, deadline=None)
@given(positions=st.sets(st.integers(0, 999), max_size=150))
def test_a_change_leads_from_the_old_bits_to_the_new_ones(dtype: torch.dtype, positions: set[int]) -> None:
    old = (torch.arange(1000) % 100).to(dtype).reshape(10, 100)
    new = changed(old, sorted(positions))
    base = old.clone()
    taken = take_over(base, new)()
    assert np.array_equal(bits(base), bits(new))
    if len(positions) <= DENSE_SHARE / 2 * 1000:
        assert taken is not None
    if taken is None:
        return
    gaps = taken.gaps
    assert (taken.values is None) == (len(positions) > VALUES_SHARE * 1000)
    assert taken.values is None or np.array_equal(taken.values, bits(new)[sorted(positions)])
    assert unpack(gaps).tolist() == sorted(positions)
    assert gaps.packed.tolist() == pack(unpack(gaps)).packed.tolist()
    change = change_of(new, gaps, digest(new))
    assert change.nbytes == change_bytes(new, gaps)
    assert torch.equal(change, change_of(new, gaps, digest(new), taken.values))
    arrived = Change.read(change.numpy(), old)
    target = old.clone()
    arrived.apply(target)
    assert np.array_equal(bits(target), bits(new))
    assert arrived.digest == digest(target)


def floats(*patterns: int) -> torch.Tensor:
    """Return the float32 numbers with these bits."""
    return torch.from_numpy(np.array(patterns, np.uint32).view(np.float32))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
@example([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF])  # ties, to the even neighbour, and beside them
@example([0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000])  # the largest numbers round to infinities
@example([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7FC00000])  # NaNs
@example([0x00000001, 0x00008000, 0x00018000, 0x80000000])  # below the normal numbers
def test_float32_is_rounded_to_bfloat16_as_torch_rounds_it(patterns: list[int]) -> None:
    old, new = torch.full((len(patterns),), 0.125, dtype=torch.bfloat16), floats(*patterns)
    take_over(old, new)()
    expected = new.to(torch.bfloat16)
    numbers = ~torch.isnan(new)
    assert np.array_equal(bits(old[numbers]), bits(expected[numbers]))
    assert torch.equal(torch.isnan(old), torch.isnan(expected))


@pytest.mark.parametrize("elements", [1000, 3 * CHUNK_ELEMENTS // 2])
def test_values_that_are_rounded_have_the_changes_of_rounded_values(elements: int) -> None:
    new = torch.randn(elements)
    old = changed(new.to(torch.bfloat16), list(range(3, elements, 70)))
    by_rounding, by_comparison = old.clone(), old.clone()
    rounded = take_over(by_rounding, new)()
    compared = take_over(by_comparison, new.to(torch.bfloat16))()
    assert rounded is not None
    assert compared is not None
    assert np.array_equal(rounded.gaps.packed, compared.gaps.packed)
    assert rounded.values is not None
    assert compared.values is not None
    assert np.array_equal(rounded.values, compared.values)
    assert np.array_equal(bits(by_rounding), bits(by_comparison))


def test_rounded_values_that_changed_everywhere_travel_as_a_whole() -> None:
    old, new = torch.zeros(10_000, dtype=torch.bfloat16), torch.randn(10_000)
    assert take_over(old, new)() is None
    assert torch.equal(old, new.to(torch.bfloat16))


@pytest.mark.parametrize(
    ("old", "new"),
    [(torch.float16, torch.float32), (torch.bfloat16, torch.float16), (torch.float32, torch.bfloat16)],
)
def test_values_in_other_dtypes_are_refused(old: torch.dtype, new: torch.dtype) -> None:
    with pytest.raises(TypeError, match="convert them first"):
        take_over(torch.zeros(4, dtype=old), torch.zeros(4, dtype=new))


@settings(max_examples=60, deadline=None)
@given(
    positions=st.sets(st.integers(0, 4999), max_size=60), chunk=st.sampled_from([1, 7, 254, 255, 256, 1000])
)
def test_a_tensor_that_several_threads_compare_has_the_same_positions(
    positions: set[int], chunk: int
) -> None:
    old = torch.zeros(5000, dtype=torch.bfloat16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta, "CHUNK_ELEMENTS", chunk)
        taken = take_over(old, new := changed(old, sorted(positions)))()
    assert taken is not None
    assert unpack(taken.gaps).tolist() == sorted(positions)
    assert taken.values is None or np.array_equal(taken.values, bits(new)[sorted(positions)])
    assert taken.gaps.packed.tolist() == pack(np.array(sorted(positions), np.int64)).packed.tolist()


def test_bits_are_compared_so_nans_and_negative_zeros_count() -> None:
    old = torch.zeros(1000, dtype=torch.bfloat16)
    new = old.clone()
    old[3] = new[3] = float("nan")
    new[7] = -0.0
    new[9] = float("inf")
    taken = take_over(old, new)()
    assert taken is not None
    assert unpack(taken.gaps).tolist() == [7, 9]


def test_a_tensor_that_changed_everywhere_travels_as_a_whole() -> None:
    old = torch.zeros(10_000)
    assert take_over(old.clone(), old + 1)() is None
    late = old.clone()
    late[6000:8500] = 1  # a first look at some elements does not tell
    base = old.clone()
    assert take_over(base, late)() is None
    assert torch.equal(base, late)
    change = change_of(late, None, digest(late))
    arrived = Change.read(change.numpy(), old)
    assert arrived.kind == Kind.FULL
    arrived.apply(old)
    assert torch.equal(old, late)


@pytest.mark.parametrize("shape", [(), (0, 4), (1,)])
def test_tensors_of_any_shape_change(shape: tuple[int, ...]) -> None:
    old = torch.zeros(shape, dtype=torch.bfloat16)
    for new in (old.clone(), old + 1):
        taken = take_over(old.clone(), new)()
        change = change_of(new, None if taken is None else taken.gaps, digest(new))
        target = old.clone()
        Change.read(change.numpy(), target).apply(target)
        assert torch.equal(target, new)


def test_a_change_that_is_not_what_it_claims_is_refused() -> None:
    tensor = torch.zeros(100, dtype=torch.bfloat16)
    change = change_of(changed(tensor, [5, 50]), pack(np.array([5, 50])), 0).numpy()
    with pytest.raises(DamagedDelta, match="3 bytes are no change"):
        Change.read(change[:3], tensor)
    with pytest.raises(DamagedDelta, match="kind 1, 2 values and 2 bytes in 37 bytes"):
        Change.read(change[:-1], tensor)
    for word, value in ((0, 9), (1, -1), (1, 101), (2, 7)):
        wrong = change.copy()
        wrong[:HEADER_BYTES].view(np.int64)[word] = value
        with pytest.raises(DamagedDelta):
            Change.read(wrong, tensor)
    with pytest.raises(DamagedDelta, match="element 50 of 20"):
        Change.read(change, tensor[:20].clone()).apply(tensor[:20].clone())
    part = change_of(tensor, None, 0).numpy()
    with pytest.raises(DamagedDelta, match="100 values of 200"):
        Change.read(part, torch.zeros(200, dtype=torch.bfloat16))


SIZES = {"a": 4000, "b": 3000, "c": 100}


def log_of(weights: dict[str, torch.Tensor]) -> tuple[ChangeLog, Manifest]:
    shapes = [(name, tuple(tensor.shape)) for name, tensor in weights.items()]
    full = plan(shapes, dtype=torch.bfloat16, bucket_bytes=4096, model_fingerprint="f")
    return ChangeLog(weights), full


def zeros() -> dict[str, torch.Tensor]:
    return {name: torch.zeros(size, dtype=torch.bfloat16) for name, size in SIZES.items()}


def step(log: ChangeLog, weights: dict[str, torch.Tensor], **positions: list[int]) -> None:
    for name, tensor in weights.items():
        log.update(name, changed(tensor, positions.get(name, [])))


def test_two_updates_of_one_version_count_together() -> None:
    """Such as two copies of the weights, of which only the second one is published."""
    weights = zeros()
    kept = {name: tensor.clone() for name, tensor in weights.items()}
    log, full = log_of(weights)
    log.close(0)
    step(log, weights, a=[1, 2], b=list(range(SIZES["b"])), c=[5])
    step(log, weights, a=[2, 3000], b=[7])
    assert log.close(1) == pytest.approx((3 + SIZES["b"] + 1) / sum(SIZES.values()))
    delta = log.since(0, full, bucket_bytes=4096)
    assert delta is not None
    assert unpack(Change.read(delta["a"].numpy(), weights["a"]).gaps).tolist() == [1, 2, 3000]
    for name, tensor in kept.items():
        change = Change.read(delta[name].numpy(), tensor)
        change.apply(tensor)
        assert torch.equal(tensor, weights[name])
        assert change.digest == digest(tensor)


def test_a_weight_whose_comparison_failed_travels_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison may have changed some elements before it failed."""
    weights = zeros()
    kept = {name: tensor.clone() for name, tensor in weights.items()}
    log, full = log_of(weights)
    log.close(0)
    assert log.digest("b") == digest(kept["b"])

    def failing(old: NDArray[np.generic], *others: NDArray[np.generic]) -> tuple[int, int, int]:
        count = copy_changes(old, *others)
        if old.size == SIZES["b"]:
            raise MemoryError
        return count

    monkeypatch.setattr(delta, "copy_changes", failing)
    step(log, weights, a=[1, 2], b=[7])
    with pytest.raises(MemoryError):
        log.settle()
    log.close(1)
    sent = log.since(0, full, bucket_bytes=4096)
    assert sent is not None
    for name, tensor in kept.items():
        change = Change.read(sent[name].numpy(), tensor)
        change.apply(tensor)
        assert torch.equal(tensor, weights[name])
        assert change.digest == digest(tensor)
    assert Change.read(sent["b"].numpy(), weights["b"]).kind == Kind.FULL


def test_the_log_reaches_back_to_the_first_version_that_was_published() -> None:
    weights = zeros()
    log, full = log_of(weights)
    assert log.since(0, full, bucket_bytes=4096) is None, "nothing was published"
    assert log.close(5) is None
    assert log.since(4, full, bucket_bytes=4096) is None
    step(log, weights, a=[1, 2], b=[7])
    assert log.close(6) == pytest.approx(3 / 7100)
    step(log, weights, a=[2, 3])
    assert log.close(7) == pytest.approx(2 / 7100)
    assert log.close(7) is None, "published again, without a change"
    for base, positions in ((5, [1, 2, 3]), (6, [2, 3]), (7, [])):
        delta = log.since(base, full, bucket_bytes=4096)
        assert delta is not None
        assert delta.base == base
        arrived = Change.read(delta["a"].numpy(), weights["a"])
        assert unpack(arrived.gaps).tolist() == positions
        assert arrived.digest == digest(weights["a"])
        assert {spec.name: spec.nbytes for spec in delta.manifest.tensors} == {
            name: change.nbytes for name, change in delta.items()
        }


def test_a_delta_has_the_newest_values_whether_the_log_kept_them_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It keeps those of the newest version only, of tensors that changed little."""
    weights = zeros()
    log, full = log_of(weights)
    log.close(0)
    versions = [copies(weights)]
    for version in (1, 2):
        step(log, weights, a=[1, 2, 3], b=list(range(400)), c=[version])
        log.close(version)
        versions.append(copies(weights))
    read = reads(monkeypatch)
    for base, passes in ((1, [400]), (0, [3, 400, 2])):
        update = log.since(base, full, bucket_bytes=4096)
        assert update is not None
        for name, packed in update.items():
            target = versions[base][name]
            Change.read(packed.numpy(), target).apply(target)
            assert np.array_equal(bits(target), bits(weights[name]))
        assert read == passes
        read.clear()


def copies(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in weights.items()}


def reads(patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of elements of each pass over a weight that packs a change."""
    read: list[int] = []

    def noted(elements: NDArray[np.generic], gaps: NDArray[np.uint8], values: NDArray[np.generic]) -> None:
        read.append(values.size)
        read_elements(elements, gaps, values)

    patch.setattr(delta, "read_elements", noted)
    return read


def test_the_same_bytes_twice_are_a_share_of_zero() -> None:
    weights = zeros()
    log, _ = log_of(weights)
    log.close(0)
    step(log, weights)
    assert log.close(1) == 0.0


def test_a_full_version_is_sent_if_most_of_it_changed() -> None:
    weights = zeros()
    log, full = log_of(weights)
    log.close(0)
    log.update("a", weights["a"] + 1)
    log.update("b", weights["b"])
    log.update("c", weights["c"])
    assert SIZES["a"] / sum(SIZES.values()) > LARGEST_DELTA
    assert log.close(1) == pytest.approx(4000 / 7100)
    assert log.since(0, full, bucket_bytes=4096) is None
    assert log.since(1, full, bucket_bytes=4096) is not None


def test_a_small_tensor_that_changed_everywhere_is_a_part_of_a_delta() -> None:
    weights = zeros()
    log, full = log_of(weights)
    log.close(0)
    for name, tensor in weights.items():
        log.update(name, tensor + 1 if name == "c" else changed(tensor, [9]))
    log.close(1)
    delta = log.since(0, full, bucket_bytes=4096)
    assert delta is not None
    kinds = {name: Change.read(change.numpy(), weights[name]).kind for name, change in delta.items()}
    assert kinds == {"a": Kind.SPARSE, "b": Kind.SPARSE, "c": Kind.FULL}


def test_the_log_has_a_bound_and_forgets_old_versions_first() -> None:
    weights = zeros()
    log, full = log_of(weights)
    log.close(0)
    for version in range(1, 40):
        step(log, weights, a=list(range(0, 4000, 16)))
        log.close(version)
    kept = [base for base in range(40) if log.since(base, full, bucket_bytes=4096) is not None]
    assert kept == list(range(kept[0], 40))
    per_version = 250
    most = LOG_SHARE * sum(tensor.nbytes for tensor in weights.values())
    assert len(kept) == pytest.approx(most / per_version + 1, abs=1)
