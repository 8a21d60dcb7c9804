"""Packing: nothing is split, nothing is padded, and every sampled token knows who predicts it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner.fakes import completion, group
from slipstream.learner.batch import (
    TrainingSequence,
    group_ids,
    make_row,
    make_sequences,
    pack,
    prompt_tokens,
    total_rewards,
)
from slipstream.types import Completion

CPU = torch.device("cpu")


def sequence(answer: Completion, *, prompt: int = 2, advantage: float = 1.0, of: int = 0) -> TrainingSequence:
    return TrainingSequence(
        prompt_token_ids=tuple(range(40, 40 + prompt)), completion=answer, advantage=advantage, group=of
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
    tensors = [make_row(row, prompt_tokens(sequences), CPU) for row in rows]
    assert sum(row.tokens_R.numel() for row in tensors) == sum(member.length for member in sequences)


def test_packing_is_first_fit_decreasing() -> None:
    rows = pack([of_length(n) for n in (3, 7, 4, 6, 9, 3)], max_tokens=10)
    assert [[member.length for member in row] for row in rows] == [[9], [7, 3], [6, 4], [3]]


def test_a_sequence_longer_than_a_row_gets_one_of_its_own() -> None:
    rows = pack([of_length(n) for n in (3, 50, 4)], max_tokens=16)
    assert [[member.length for member in row] for row in rows] == [[50], [4, 3]]


def test_a_row_worked_by_hand_with_a_token_that_an_environment_put_in() -> None:
    first = sequence(
        completion((10, 11, 12), versions=(4, 4, 5), logprobs=(-1, -2, -3), mask=(1, 0, 1)), advantage=0.5
    )
    second = sequence(completion((20,), versions=(6,), logprobs=(-4,)), prompt=1, advantage=-2.0, of=7)
    row = make_row([first, second], prompt_tokens([first, second]), CPU)
    assert row.tokens_R.tolist() == [40, 41, 10, 11, 12, 40, 20]
    assert row.positions_R.tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert row.targets_T.tolist() == [10, 12, 20]
    assert row.predictors_T.tolist() == [1, 3, 5]
    assert row.versions_T.tolist() == [4, 5, 6]
    assert row.rollout_logprobs_T.tolist() == [-1, -3, -4]
    assert row.sequence_ids_T.tolist() == [0, 0, 1]
    assert row.advantages_B.tolist() == [0.5, -2.0]
    assert row.group_ids_B.tolist() == [0, 7]
    assert row.prompt_tokens_B.tolist() == [2, 1]


@settings(max_examples=30, deadline=None)
@given(SEQUENCES)
def test_every_target_stands_right_behind_its_predictor(sequences: list[TrainingSequence]) -> None:
    for members in pack(sequences, max_tokens=64):
        row = make_row(members, prompt_tokens(sequences), CPU)
        assert torch.equal(row.tokens_R[row.predictors_T + 1], row.targets_T)
        assert torch.equal(row.positions_R[row.predictors_T + 1], row.positions_R[row.predictors_T] + 1)


def test_rewards_are_weighted_and_a_withheld_one_is_nan() -> None:
    groups = [group(completion(reward=2.0), completion(reward=None)), group(completion(reward=0.5))]
    totals = total_rewards(groups, {"exact_match": 3.0})
    assert totals.dtype == torch.float64
    assert totals[[0, 2]].tolist() == [6.0, 1.5]
    assert math.isnan(totals[1])
    assert group_ids(groups).tolist() == [0, 0, 1]


def test_a_withheld_completion_and_one_without_sampled_tokens_are_not_trained_on() -> None:
    groups = [
        group(completion((1,)), completion((2,), reward=None)),
        group(completion((3,)), completion((4,), mask=(0,))),
    ]
    sequences = make_sequences(groups, [0.1, 0.2, 0.3, 0.4])
    found = [(s.completion.token_ids, s.advantage, s.group) for s in sequences]
    assert found == [((1,), 0.1, 0), ((3,), 0.3, 1)]


def test_an_advantage_for_every_completion_is_needed() -> None:
    with pytest.raises(ValueError, match="zip"):
        make_sequences([group(completion(), completion())], [1.0])
