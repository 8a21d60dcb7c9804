"""The draws of a mixture have its shares, over any prefix and whatever the weights are."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream.prompts.mixture import Shares

weights = st.lists(
    st.one_of(st.integers(1, 12), st.sampled_from([0.1, 0.25, 1e-3, 1e6, 1 / 3, 2.5])), min_size=2, max_size=8
)


def drawn(shares: list[float], number: int) -> list[tuple[int, int]]:
    source = Shares(shares)
    return [source.draw(index) for index in range(number)]


@settings(deadline=None, max_examples=40)
@given(weights)
def test_over_any_prefix_a_source_is_less_than_one_draw_from_its_share(shares: list[float]) -> None:
    fractions = [Fraction(repr(float(share))) for share in shares]
    counts: Counter[int] = Counter()
    for number, (source, _) in enumerate(drawn([float(share) for share in shares], 250), start=1):
        counts[source] += 1
        for place, share in enumerate(fractions):
            assert abs(counts[place] - number * share / sum(fractions)) < 1


@settings(deadline=None, max_examples=40)
@given(weights, st.integers(0, 2000))
def test_a_source_goes_on_exactly_where_it_was_at_any_draw(shares: list[float], start: int) -> None:
    draws, resumed = drawn([float(s) for s in shares], start + 40), Shares([float(s) for s in shares])
    assert [resumed.draw(start + offset) for offset in range(40)] == draws[start:]
    positions: Counter[int] = Counter()
    for source, position in draws:
        assert position == positions[source]
        positions[source] += 1


def test_equal_shares_take_turns() -> None:
    assert drawn([2.0, 2.0, 2.0], 7) == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2)]


def test_three_to_one_is_exact_in_every_four_draws() -> None:
    sources = [source for source, _ in drawn([0.75, 0.25], 400)]
    assert all(Counter(sources[start : start + 4]) == {0: 3, 1: 1} for start in range(0, 400, 4))


@settings(deadline=None, max_examples=40)
@given(weights, st.integers(0, 200), st.integers(0, 7))
def test_a_position_is_not_reached_before_the_draws_that_are_promised(
    shares: list[float], position: int, place: int
) -> None:
    place %= len(shares)
    source = Shares([float(share) for share in shares])
    promised = min(source.draws_before(place, position), 2000)
    reached = [at for taken, at in (source.draw(number) for number in range(promised)) if taken == place]
    assert all(at < position for at in reached)


@pytest.mark.parametrize("number", [10**9, 10**12])
def test_a_late_draw_of_small_shares_is_found_at_once(number: int) -> None:
    source = Shares([3.0, 2.0])
    counts = Counter(taken for taken, _ in (source.draw(index) for index in range(number, number + 5)))
    assert counts == {0: 3, 1: 2}
    assert source.draw(number)[1] == 3 * (number // 5)


def test_the_draws_of_a_period_begin_anew() -> None:
    source = Shares([1.0, 2.0, 4.0])
    first, second = ([source.draw(7 * round_ + i)[0] for i in range(7)] for round_ in (0, 1))
    assert first == second
    assert first == [s for s, _ in drawn([0.1, 0.2, 0.4], 7)]
