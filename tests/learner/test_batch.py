"""Packing: no sequence is split, no row is padded, and each sampled token knows its predicting token."""

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner.fakes import completion, group
from slipstream.algorithms.spec import OverlongFilter, Shaping
from slipstream.learner.batches.batch import TrainingSequence, make_sequences, sampled_tokens, split
from slipstream.learner.batches.packing import pack
from slipstream.learner.batches.rows import empty_row, make_row
from slipstream.records import Completion, FinishReason

CPU = torch.device("cpu")


def sequence(
    answer: Completion, *, prompt: int = 2, place: int = 0, share: float = 1.0, of: int = 0
) -> TrainingSequence:
    return TrainingSequence(
        prompt_token_ids=tuple(range(40, 40 + prompt)), segment=answer, place=place, share=share, group=of
    )


def of_length(length: int) -> TrainingSequence:
    return sequence(completion(range(length - 2)))


SEQUENCES = st.lists(st.integers(3, 40).map(of_length), max_size=25)


@settings(max_examples=50, deadline=None)
@given(SEQUENCES, st.integers(16, 64))
def test_packing_keeps_every_sequence_whole_and_adds_no_token(
    sequences: list[TrainingSequence], max_tokens: int
) -> None:
    rows = pack(sequences, max_tokens=max_tokens)
    packed = [member for row in rows for member in row]
    assert sorted(map(id, packed)) == sorted(map(id, sequences))
    for row in rows:
        assert len(row) == 1 or sum(member.length for member in row) <= max_tokens
    tensors = [make_row(row, sampled_tokens(sequences), CPU) for row in rows]
    assert sum(row.tokens_R.numel() for row in tensors) == sum(member.length for member in sequences)


def test_a_row_has_the_layout_of_its_tokens() -> None:
    sequences = [of_length(5), of_length(7)]
    for row, counted in ((make_row(sequences, sampled_tokens(sequences), CPU), 8), (empty_row(CPU), 0)):
        assert row.layout.sequence_ids_T.tolist() == row.sequence_ids_T.tolist()
        assert row.layout.mask_T.tolist() == row.mask_T.bool().tolist()
        assert row.layout.counted == counted


def test_packing_is_first_fit_decreasing() -> None:
    rows = pack([of_length(n) for n in (3, 7, 4, 6, 9, 3)], max_tokens=10)
    assert [[member.length for member in row] for row in rows] == [[9], [7, 3], [6, 4], [3]]


def test_a_sequence_longer_than_a_row_gets_one_of_its_own() -> None:
    rows = pack([of_length(n) for n in (3, 50, 4)], max_tokens=16)
    assert [[member.length for member in row] for row in rows] == [[50], [4, 3]]


def test_a_row_worked_by_hand_with_a_token_that_an_environment_put_in() -> None:
    first = sequence(
        completion((10, 11, 12), versions=(4, 4, 5), logprobs=(-1, -2, -3), mask=(1, 0, 1)),
        place=3,
        share=0.5,
    )
    second = sequence(completion((20,), versions=(6,), logprobs=(-4,)), prompt=1, place=9, of=7)
    row = make_row([first, second], sampled_tokens([first, second]), CPU)
    assert row.tokens_R.tolist() == [40, 41, 10, 11, 12, 40, 20]
    assert row.positions_R.tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert row.targets_T.tolist() == [10, 12, 20]
    assert row.predictors_T.tolist() == [1, 3, 5]
    assert row.versions_T.tolist() == [4, 5, 6]
    assert row.rollout_logprobs_T.tolist() == [-1, -3, -4]
    assert row.sequence_ids_T.tolist() == [0, 0, 1]
    assert row.places_B.tolist() == [3, 9]
    assert row.shares_B.tolist() == [0.5, 1.0]
    assert row.group_ids_B.tolist() == [0, 7]
    assert row.prompt_tokens_B.tolist() == [2, 1]


@settings(max_examples=30, deadline=None)
@given(SEQUENCES)
def test_every_target_stands_right_behind_its_predictor(sequences: list[TrainingSequence]) -> None:
    for members in pack(sequences, max_tokens=64):
        row = make_row(members, sampled_tokens(sequences), CPU)
        assert torch.equal(row.tokens_R[row.predictors_T + 1], row.targets_T)
        assert torch.equal(row.positions_R[row.predictors_T + 1], row.positions_R[row.predictors_T] + 1)


def test_a_withheld_completion_and_one_without_sampled_tokens_are_not_trained_on() -> None:
    groups = [
        group(completion((1,)), completion((2,), reward=None)),
        group(completion((3,)), completion((4,), mask=(0,))),
    ]
    sequences = [(s.segment.token_ids, s.place, s.group) for s in make_sequences(groups, Shaping())]
    assert sequences == [((1,), 0, 0), ((3,), 2, 1)]


def test_the_overlong_filter_takes_truncated_completions_out_of_the_loss_and_its_counts() -> None:
    cut = replace(completion((2, 3)), finish_reason=FinishReason.LENGTH)
    groups = [group(completion((1,)), cut, completion((4,)))]
    kept = make_sequences(groups, Shaping(overlong_filter=OverlongFilter()))
    assert [s.place for s in kept] == [0, 2]
    assert (sampled_tokens(kept).by_group, sampled_tokens(kept).by_completion) == ({0: 2}, {0: 1, 2: 1})
    assert len(make_sequences(groups, Shaping())) == 3


def test_minibatches_are_whole_groups_in_the_order_of_the_batch() -> None:
    # five groups in two parts: replay hands out the oldest dispatches first, and they are trained on first
    sequences = [sequence(completion((9,)), place=2 * of + i, of=of) for of in range(5) for i in range(2)]
    parts = split(sequences, 2)
    assert [[member.place for member in part] for part in parts] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]
    assert [len(part) for part in split(sequences[:2], 4)] == [2]
    assert split([], 4) == [[]]


def test_equal_answers_of_a_group_are_dropped_or_share_their_advantage() -> None:
    groups = [group(completion((1, 2)), completion((3,)), completion((1, 2))), group(completion((1, 2)))]
    dropped = make_sequences(groups, Shaping(duplicates="drop"))
    assert [s.place for s in dropped] == [0, 1, 3]  # another group's equal answer is no duplicate
    withheld_twin = [group(completion((1, 2), reward=None), completion((1, 2)))]
    assert [s.place for s in make_sequences(withheld_twin, Shaping(duplicates="drop"))] == [1]
    shared = make_sequences(groups, Shaping(duplicates="share"))
    assert [s.share for s in shared] == [0.5, 1.0, 0.5, 1.0]
