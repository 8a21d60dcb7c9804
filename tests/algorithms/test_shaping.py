"""Shaping: length, variance, duplicates and difficulty, with numbers worked by hand."""

from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream.algorithms.shaping import (
    PassRate,
    admission_probability,
    draw_of,
    duplicate_weights,
    group_size,
    has_variance,
    skip_reason,
    soft_overlong,
)
from slipstream.algorithms.spec import (
    AdaptiveGroup,
    Buckets,
    Goldilocks,
    Shaping,
    SoftOverlong,
)

PAPER = SoftOverlong(safe_len=16384, max_len=20480)
LINEAR = replace(PAPER, floor=False)
RATES = st.floats(0, 1)
LENGTHS = st.integers(0, 40000)


def test_the_papers_ramp_worked_by_hand() -> None:
    # L_cache = 20480 - 16384 = 4096: a quarter of it is 1024 tokens.
    lengths = (0, 16384, 17408, 18432, 20480, 30000)
    assert [soft_overlong(n, PAPER) for n in lengths] == [0.0, 0.0, -0.25, -0.5, -1.0, -1.0]


def test_the_linear_ramp_goes_on_falling_beyond_the_longest_length() -> None:
    # -0.5 · (24576 - 16384) / 4096 = -1.
    linear = replace(LINEAR, factor=0.5)
    assert [soft_overlong(n, linear) for n in (16384, 18432, 20480, 24576)] == [0.0, -0.25, -0.5, -1.0]


@given(LENGTHS)
def test_both_ramps_are_the_equations_of_their_sources_and_equal_up_to_the_longest_length(n: int) -> None:
    longest, cache = 20480, 4096
    if n <= longest - cache:
        paper = 0.0
    elif n <= longest:
        paper = ((longest - cache) - n) / cache
    else:
        paper = -1.0
    chapter = -1.0 * max(0.0, (n - (longest - cache)) / (longest - (longest - cache)))
    assert soft_overlong(n, PAPER) == paper
    assert soft_overlong(n, LINEAR) == chapter
    if n <= longest:
        assert paper == chapter


@given(LENGTHS, LENGTHS, st.booleans(), st.floats(0.01, 10))
def test_a_longer_completion_never_costs_less(one: int, other: int, floor: bool, factor: float) -> None:
    spec = replace(PAPER, floor=floor, factor=factor)
    assert soft_overlong(max(one, other), spec) <= soft_overlong(min(one, other), spec) <= 0
    if floor:
        assert soft_overlong(one, spec) >= -factor


@pytest.mark.parametrize("spec", [SoftOverlong(), SoftOverlong(safe_len=5), SoftOverlong(max_len=5)])
def test_lengths_that_are_not_resolved_are_refused(spec: SoftOverlong) -> None:
    with pytest.raises(ValueError, match=r"soft_overlong: got safe_len .* needs two numbers"):
        soft_overlong(3, spec)


def test_variance_is_a_range_above_the_tolerance() -> None:
    assert has_variance((0.0, 1.0, 1.0), 1e-6)
    assert not has_variance((1.0, 1.0), 1e-6)
    assert not has_variance((0.1 * 3, 0.3), 1e-6)
    assert has_variance((0.1 * 3, 0.3), 0.0)
    assert not has_variance((0.0, 0.5), 0.5)
    assert not has_variance((1.0,), 0.0)
    assert not has_variance((), 0.0)


def test_duplicates_worked_by_hand() -> None:
    group = [(1, 2), (1, 2, 3), (1, 2), (1,), (1, 2)]
    assert duplicate_weights(group, "keep") == [1.0] * 5
    assert duplicate_weights(group, "drop") == [1.0, 1.0, 0.0, 1.0, 0.0]
    assert duplicate_weights(group, "share") == [1 / 3, 1.0, 1 / 3, 1.0, 1 / 3]
    assert duplicate_weights([], "share") == []


@given(st.lists(st.lists(st.integers(0, 1), max_size=2), max_size=12))
def test_dropping_and_sharing_leave_each_distinct_answer_a_weight_of_one(group: list[list[int]]) -> None:
    distinct = len({tuple(ids) for ids in group})
    assert sum(duplicate_weights(group, "drop")) == distinct
    assert sum(duplicate_weights(group, "share")) == pytest.approx(distinct)


def test_an_unknown_way_with_duplicates_is_refused() -> None:
    with pytest.raises(ValueError, match="duplicates: got 'halve', needs 'keep', 'drop' or 'share'"):
        duplicate_weights([(1,)], "halve")  # type: ignore[arg-type]


def test_a_pass_rate_forgets_worked_by_hand() -> None:
    # 2 of 4, then 4 of 4 after the old counts were halved: (1 + 4) / (2 + 4).
    rate = PassRate().after(correct=2, total=4, decay=0.5)
    assert rate.rate == 0.5
    rate = rate.after(correct=4, total=4, decay=0.5)
    assert (rate.correct, rate.total, rate.rate) == (5.0, 6.0, 5 / 6)
    assert PassRate().rate is None


def chance(rate: float | None, shaping: Shaping, *, versions_since_seen: int = 0) -> float:
    return admission_probability(rate, versions_since_seen=versions_since_seen, shaping=shaping)


def test_goldilocks_admits_what_is_neither_too_hard_nor_too_easy() -> None:
    shaping = Shaping(goldilocks=Goldilocks(low=0.2, high=0.8, reprobe_steps=10, epsilon=0.05))
    rates = (None, 0.0, 0.19, 0.2, 0.5, 0.8, 0.81, 1.0)
    assert [chance(rate, shaping) for rate in rates] == [1, 0.05, 0.05, 1, 1, 1, 0.05, 0.05]
    assert [chance(0.0, shaping, versions_since_seen=since) for since in (-3, 9, 10)] == [0.05, 0.05, 1]


def test_buckets_admit_in_proportion_to_their_weight() -> None:
    # Weights 1, 4, 2: the largest is always asked, the others as often as their share of it.
    shaping = Shaping(buckets=Buckets(thresholds=(0.25, 0.75), weights=(1.0, 4.0, 2.0)))
    rates = (None, 0.0, 0.24, 0.25, 0.74, 0.75, 1.0)
    assert [chance(rate, shaping) for rate in rates] == [1, 0.25, 0.25, 1, 1, 0.5, 0.5]


def test_goldilocks_and_buckets_multiply_and_each_skip_has_its_reason() -> None:
    # Rate 0.9: goldilocks lets a tenth pass, the bucket half of that.
    shaping = Shaping(goldilocks=Goldilocks(epsilon=0.1), buckets=Buckets(weights=(1.0, 1.0, 0.5)))
    assert chance(0.9, shaping) == pytest.approx(0.05)
    reasons = [
        skip_reason(0.9, versions_since_seen=0, shaping=shaping, draw=draw) for draw in (0.04, 0.06, 0.2)
    ]
    assert reasons == [None, "buckets", "goldilocks"]


@given(RATES | st.none(), st.integers(-5, 600), st.floats(0, 1, exclude_max=True))
def test_without_goldilocks_and_buckets_everything_is_asked(
    rate: float | None, since: int, draw: float
) -> None:
    assert skip_reason(rate, versions_since_seen=since, shaping=Shaping(), draw=draw) is None


def test_draws_are_the_same_everywhere_and_spread_evenly() -> None:
    draws = [draw_of(7, index) for index in range(4000)]
    assert draws == [draw_of(7, index) for index in range(4000)]
    assert all(0 <= draw < 1 for draw in draws)
    assert abs(fmean(draws) - 0.5) < 0.02  # four standard errors: 4 · 0.2887 / sqrt(4000) = 0.018
    assert draw_of(8, 0) != draw_of(7, 0) != draw_of(7, 1)


@pytest.mark.parametrize(
    ("rate", "size"),
    # log 0.05 = -2.9957: / log 0.5 = 4.32, / log 0.75 = 10.41, / log 0.9 = 28.4, / log 0.97 = 98.4.
    [(0.5, 5), (0.75, 11), (0.25, 11), (0.9, 29), (0.0, 32), (1.0, 32), (None, 8)],
)
def test_the_size_of_a_group_worked_by_hand(rate: float | None, size: int) -> None:
    assert group_size(rate, AdaptiveGroup(), default=8) == size


def test_a_whole_number_of_completions_is_not_rounded_up() -> None:
    # log 0.64 / log 0.8 = 2, but 2.0000000000000004 in floating point.
    assert group_size(0.8, AdaptiveGroup(confidence=0.36), default=8) == 2


@given(RATES, RATES)
def test_a_group_grows_with_the_distance_of_the_pass_rate_from_one_half(one: float, other: float) -> None:
    near, far = sorted((one, other), key=lambda rate: abs(rate - 0.5))
    sizes = [group_size(rate, AdaptiveGroup(largest=99), default=8) for rate in (near, far)]
    assert 2 <= sizes[0] <= sizes[1] <= 99
    assert group_size(1.0 - one, AdaptiveGroup(), default=8) == group_size(one, AdaptiveGroup(), default=8)
