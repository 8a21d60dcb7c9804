"""Token weights against hand-worked numbers: three sequences of 2, 1 and 3 tokens, of prompts 4, 4 and 8."""

from typing import Any

import pytest
import torch
from slipstream.algorithms import Counts, count, token_weights
from slipstream.algorithms.spec import Aggregation
from torch import Tensor

MASK = torch.tensor([1, 0, 1, 1, 1, 1, 1])
IDS = torch.tensor([0, 0, 0, 1, 2, 2, 2])
PROMPTS = torch.tensor([4, 4, 8])


def weights(kind: Any, mask: Tensor = MASK, **arguments: Any) -> list[float]:
    aggregation = Aggregation(kind=kind, max_tokens=10 if kind == "token_sum_norm" else None)
    return token_weights(aggregation, mask, IDS, **arguments).tolist()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("token_mean", [1 / 6, 0, 1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6]),  # N = 6
        ("seq_mean_token_mean", [1 / 6, 0, 1 / 6, 1 / 3, 1 / 9, 1 / 9, 1 / 9]),  # B = 3, L = 2, 1, 3
        ("seq_mean_token_sum", [1 / 3, 0, 1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3]),  # B = 3
        ("token_sum_norm", [1 / 30, 0, 1 / 30, 1 / 30, 1 / 30, 1 / 30, 1 / 30]),  # B = 3, budget 10
        ("prompt_mean", [1 / 6, 0, 1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6]),  # P = 2, 3 tokens each
    ],
)
def test_weights_are_those_of_the_table(kind: str, expected: list[float]) -> None:
    assert weights(kind, group_ids=PROMPTS) == pytest.approx(expected)


def test_prompt_mean_gives_every_prompt_the_same_whatever_its_length() -> None:
    # prompts 4, 8, 8 with 2 and 1 + 3 tokens: 1 / (2 * 2) and 1 / (2 * 4)
    expected = [1 / 4, 0, 1 / 4, 1 / 8, 1 / 8, 1 / 8, 1 / 8]
    assert weights("prompt_mean", group_ids=torch.tensor([4, 8, 8])) == pytest.approx(expected)


def test_passed_counts_replace_the_batch_s_own() -> None:
    counts = Counts(tokens=60, sequences=30, prompts=5, prompt_tokens_B=torch.tensor([6, 6, 4]))
    assert weights("token_mean", counts=counts)[0] == pytest.approx(1 / 60)
    assert weights("seq_mean_token_mean", counts=counts)[4] == pytest.approx(1 / 90)
    assert weights("prompt_mean", counts=counts)[4] == pytest.approx(1 / 20)


def test_a_sequence_without_tokens_counts_neither_as_sequence_nor_as_prompt() -> None:
    counts = count(torch.tensor([1, 0, 1, 1, 0, 0, 0]), IDS, PROMPTS)
    assert (counts.tokens, counts.sequences, counts.prompts) == (3, 2, 1)


def test_an_empty_mask_weighs_nothing() -> None:
    assert weights("seq_mean_token_mean", mask=torch.zeros(7)) == [0.0] * 7


def test_prompt_mean_without_tokens_per_prompt_is_refused() -> None:
    for counts in (None, Counts(tokens=6, sequences=3, prompts=2)):
        with pytest.raises(ValueError, match="prompt_mean: got no tokens per prompt"):
            weights("prompt_mean", counts=counts)


@pytest.mark.parametrize("ids", [[0, 0, 2, 2, 3, 3, 3], [1, 1, 1, 2, 2, 2, 2], [0, 1, 1, 0, 1, 1, 2]])
def test_ids_that_skip_start_late_or_go_back_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="sequence_ids: got"):
        count(MASK, torch.tensor(ids))


def test_negative_counts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"counts\.tokens: got -1"):
        Counts(tokens=-1, sequences=0)
