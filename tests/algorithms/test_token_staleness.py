"""The age of tokens: from the version spans of a completion to the histogram."""

import pytest
import torch
from slipstream.algorithms import over_age_mask, summarize, token_staleness, token_versions


def test_spans_unroll_to_one_version_a_token() -> None:
    assert token_versions([(3, 0, 2), (4, 2, 3), (6, 3, 5)], 5) == [3, 3, 4, 6, 6]
    assert token_versions([], 0) == []


@pytest.mark.parametrize(
    "spans",
    [
        [(3, 0, 2)],
        [(3, 0, 2), (4, 3, 5)],
        [(3, 0, 3), (4, 2, 5)],
        [(3, 0, 6)],
        [(3, 1, 5)],
        [(3, 0, 0), (3, 0, 5)],
        [(-1, 0, 5)],
        [(4, 2, 5), (3, 0, 2)],
    ],
    ids=["short", "gap", "overlap", "long", "late", "empty", "negative", "order"],
)
def test_spans_that_do_not_tile_the_completion_are_refused(spans: list[tuple[int, int, int]]) -> None:
    with pytest.raises(ValueError, match="spans: got"):
        token_versions(spans, 5)


def test_staleness_is_the_version_before_the_step_minus_the_one_that_sampled() -> None:
    assert token_staleness(7, torch.tensor([7, 5, 0])).tolist() == [0, 2, 7]


def test_a_token_from_the_future_is_refused() -> None:
    with pytest.raises(ValueError, match="token of version 8, needs at most 7"):
        token_staleness(7, torch.tensor([7, 8]))


def test_a_token_at_the_limit_still_trains() -> None:
    assert over_age_mask(torch.tensor([0, 4, 5]), 4).tolist() == [False, False, True]


def test_the_summary_counts_each_token_in_one_bucket() -> None:
    summary = summarize(torch.tensor([0, 1, 2, 3, 4, 5, 8, 9, 90, 50]), torch.tensor([1] * 9 + [0]))
    assert summary.histogram == {"0": 1, "1": 1, "2": 1, "3-4": 2, "5-8": 2, ">8": 2}
    assert (summary.tokens, summary.largest, summary.mean) == (9, 90, 122 / 9)
    assert summarize(torch.zeros(0, dtype=torch.long), torch.zeros(0)).mean == 0.0
