"""The layout of a row: sequence boundaries, cuts, invalid layouts, and losses with a layout as argument."""

from typing import Any

import pytest
import torch
from algorithms.loss_batches import OBJECTIVES, make_batch, packed, run, spec_of, top_k_of
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream.algorithms import Layout, Tally, finalize, lay_out, merge, policy_loss
from slipstream.algorithms.spec import Dppo, Objective, PpoClip
from torch import Tensor


@st.composite
def rows(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    """Mask, ids and size of a part; every third mask is all ones."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    ids = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    full = draw(st.sampled_from([True, False, False]))
    mask = [1 if full else draw(st.integers(0, 1)) for _ in ids]
    return torch.tensor(mask), ids, draw(st.integers(1, 20))


@settings(max_examples=100, deadline=None)
@given(rows())
def test_each_part_of_a_layout_is_the_layout_of_that_part(row: tuple[Tensor, Tensor, int]) -> None:
    mask, ids, size = row
    layout = lay_out(mask, ids, part=size)
    end = 0
    for piece in layout.pieces():
        alone = lay_out(mask[piece.tokens], ids[piece.tokens] - ids[piece.tokens.start])
        assert facts(piece.layout) == facts(alone)
        assert (piece.tokens.start, piece.sequences.start) == (end, int(ids[piece.tokens.start]))
        assert piece.sequences.stop == int(ids[piece.tokens.stop - 1]) + 1
        end = piece.tokens.stop
    assert end == mask.shape[0]


@settings(max_examples=50, deadline=None)
@given(rows())
def test_a_layout_counts_the_mask(row: tuple[Tensor, Tensor, int]) -> None:
    mask, ids, size = row
    layout = lay_out(mask.float(), ids, part=size)
    lengths = [int(mask[ids == sequence].sum()) for sequence in range(int(ids[-1]) + 1)]
    assert layout.lengths_B.tolist() == lengths
    assert (layout.sequences, layout.counted) == (len(lengths), sum(lengths))
    assert layout.is_full == bool(mask.all())


def facts(layout: Layout) -> tuple[object, ...]:
    tensors = (layout.sequence_ids_T, layout.mask_T, layout.lengths_B)
    return (*(tensor.tolist() for tensor in tensors), layout.sequences, layout.counted, layout.is_full)


def test_no_tokens_have_a_layout() -> None:
    layout = lay_out(torch.zeros(0), torch.zeros(0, dtype=torch.long))
    assert (layout.sequences, layout.counted, layout.tokens) == (0, 0, 0)
    assert [piece.tokens for piece in layout.pieces()] == [slice(0, 0)]


@pytest.mark.parametrize(
    ("mask", "ids", "message"),
    [
        (torch.ones(2, 2), torch.zeros(2, 2).long(), r"mask: got shape \[2, 2\], needs packed tokens"),
        (torch.ones(3), torch.zeros(2).long(), r"sequence_ids: got shape \[2\], needs \[3\] as mask"),
        (torch.full((3,), 0.5), torch.zeros(3).long(), "mask: got values other than 0 and 1"),
        (torch.full((3,), torch.nan), torch.zeros(3).long(), "mask: got values other than 0 and 1"),
        (torch.ones(3), torch.tensor([0, 2, 2]), r"sequence_ids: got \[0, 2, 2\]"),
        (torch.ones(3), torch.tensor([0, 1, 0]), r"sequence_ids: got \[0, 1, 0\]"),
        (torch.ones(3), torch.tensor([1, 1, 1]), r"sequence_ids: got \[1, 1, 1\]"),
        (torch.ones(3), torch.zeros(3), r"sequence_ids: got torch\.float32, needs an integer"),
        ([1, 1], torch.zeros(2).long(), "mask: got list"),
    ],
)
def test_what_is_no_row_has_no_layout(mask: Any, ids: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lay_out(mask, ids, part=1)


BATCH = make_batch(1)


def arguments_of(objective: Objective) -> dict[str, Any]:
    tensors: dict[str, Any] = dict(packed(BATCH))
    if isinstance(objective, Dppo) and objective.needs_top_k:
        tensors["top_k"] = top_k_of(BATCH)
    return tensors


def laid_out(tensors: dict[str, Any]) -> dict[str, Any]:
    """The arguments with a layout in the place of mask and ids."""
    rest = {name: value for name, value in tensors.items() if name not in ("mask", "sequence_ids")}
    return rest | {"layout": lay_out(tensors["mask"], tensors["sequence_ids"])}


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_a_loss_by_a_layout_is_that_by_mask_and_ids(objective: Objective) -> None:
    tensors, spec = arguments_of(objective), spec_of(objective, "prompt_mean")
    by_ids, by_layout = policy_loss(spec, **tensors), policy_loss(spec, **laid_out(tensors))
    assert float(by_layout.loss) == float(by_ids.loss)
    assert by_layout.metrics == by_ids.metrics


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_a_full_row_has_the_loss_that_it_has_beside_a_token_under_the_mask(objective: Objective) -> None:
    # with every token in the mask nothing is masked out at all; what is computed must be the same
    spec, full = spec_of(objective), arguments_of(objective)
    full["mask"] = torch.ones_like(full["mask"])
    beside = {name: with_last_again(name, value) for name, value in full.items() if name != "top_k"}
    beside["mask"][-1] = 0
    if "top_k" in full:
        top_k = full["top_k"]
        names = ("logprobs_TK", "rollout_logprobs_TK", "sampled_TK")
        again = {name: torch.cat([getattr(top_k, name), getattr(top_k, name)[-1:]]) for name in names}
        beside["top_k"] = type(top_k)(**again)
    alone, joined = policy_loss(spec, **full), policy_loss(spec, **beside)
    assert float(joined.loss) == pytest.approx(float(alone.loss), rel=1e-12)
    assert joined.metrics == pytest.approx(alone.metrics, rel=1e-12)


def with_last_again(name: str, value: Tensor) -> Tensor:
    """One more token of the last sequence; what is of sequences stays as it is."""
    return value.clone() if name in ("advantages", "group_ids") else torch.cat([value, value[-1:]])


def test_a_layout_beside_a_mask_none_of_both_and_one_of_another_row_are_refused() -> None:
    tensors, spec = arguments_of(PpoClip()), spec_of(PpoClip())
    with pytest.raises(ValueError, match="layout: got it beside mask or sequence_ids"):
        policy_loss(spec, **laid_out(tensors), mask=tensors["mask"])
    for name in ("mask", "sequence_ids"):
        with pytest.raises(ValueError, match="mask, sequence_ids: got None, needs both, or layout"):
            policy_loss(spec, **(tensors | {name: None}))
    other = lay_out(torch.ones(3), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"layout: got shape \[3\]"):
        policy_loss(spec, **(laid_out(tensors) | {"layout": other}))


def test_calls_with_one_tally_have_the_sums_of_their_union() -> None:
    spec, tally = spec_of(PpoClip(), max_staleness=2), Tally(torch.device("cpu"))
    alone = [run(spec, make_batch(seed)).out.sums for seed in range(3)]
    together = [run(spec, make_batch(seed), tally=tally).out for seed in range(3)]
    assert finalize(tally.sums()) == pytest.approx(finalize(merge(alone)))
    assert together[-1].metrics == finalize(tally.sums())


def test_sums_that_were_read_stay_as_they_were() -> None:
    tally = Tally(torch.device("cpu"))
    sums = run(spec_of(PpoClip()), make_batch(0), tally=tally).out.sums
    before = {name: value.clone() for name, value in sums.items()}
    run(spec_of(PpoClip()), make_batch(1), tally=tally)
    assert all(torch.equal(value, before[name]) for name, value in sums.items())


def test_ages_of_every_bucket_are_counted_in_it() -> None:
    # buckets 0, 1, 2, 3-4, 5-8, over 8; what is under the mask may be anything
    ages = [0, 1, 2, 3, 4, 5, 8, 9, 1000, -7]
    size = len(ages)
    out = policy_loss(
        {"objective": {"kind": "pg"}, "aggregation": "token_mean"},
        logprobs=torch.zeros(size),
        advantages=torch.ones(1),
        mask=torch.tensor([1] * (size - 1) + [0]),
        sequence_ids=torch.zeros(size, dtype=torch.long),
        staleness=torch.tensor(ages),
    )
    counts = {name: metrics["tokens"] for name, metrics in out.metrics_by_staleness.items()}
    assert counts == {"0": 1, "1": 1, "2": 1, "3-4": 2, "5-8": 2, ">8": 2}
