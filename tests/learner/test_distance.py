"""The distance between two answers: worked by hand, and the properties of a metric."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner.fakes import completion
from slipstream.learner.stages.pairs import distance, runs, shingles

IDS = st.lists(st.integers(0, 3), max_size=8)


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ((1, 2, 3, 4, 5), (1, 2, 3, 4, 9), 0.5),  # 123 234 345 against 123 234 349: 2 of 4 in common
        ((1, 2, 3, 4, 5), (1, 2, 3, 4, 5), 0.0),
        ((1, 2, 3, 4), (9, 1, 2, 3, 4), 1 / 3),  # 123 234 against 912 123 234
        ((1, 2, 3), (3, 2, 1), 1.0),
        ((1, 1, 1, 1, 1), (1, 1, 1), 0.0),  # a run counts once
        ((1, 2), (1, 2), 0.0),
        ((1, 2), (1, 3), 1.0),  # shorter than a run: the same, or altogether different
        ((), (), 0.0),
        ((), (1,), 1.0),
    ],
)
def test_the_distance_is_the_share_of_runs_that_are_not_common(
    one: tuple[int, ...], other: tuple[int, ...], apart: float
) -> None:
    assert distance(runs(one), runs(other)) == pytest.approx(apart)


def test_tokens_of_the_environment_do_not_count() -> None:
    own, put_in = completion((1, 2, 3)), completion((1, 7, 2, 8, 3), mask=(1, 0, 1, 0, 1))
    assert shingles(own) == shingles(put_in) == {(1, 2, 3)}


@given(IDS, IDS, IDS)
def test_the_distance_is_a_metric_between_0_and_1(a: list[int], b: list[int], c: list[int]) -> None:
    sets = [runs(ids) for ids in (a, b, c)]
    assert all(distance(one, other) == distance(other, one) for one, other in product(sets, sets))
    assert all(0 <= distance(one, other) <= 1 for one, other in product(sets, sets))
    assert distance(sets[0], sets[2]) <= distance(sets[0], sets[1]) + distance(sets[1], sets[2]) + 1e-12
