"""The places of a rollout follow its key-value cache."""

from slipstream.rollout.places import Places


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_cache_with_free_blocks_offers_all_places_at_once() -> None:
    assert Places(8).follow(taken=0, cache_use=0.1, preemptions=0) == 8


def test_a_preemption_removes_a_quarter_of_the_used_places_and_the_next_one_waits() -> None:
    clock = Clock()
    places = Places(16, clock=clock)
    assert places.follow(taken=16, cache_use=1.0, preemptions=3) == 12
    clock.now = 4.0
    assert places.follow(taken=16, cache_use=1.0, preemptions=9) == 12
    clock.now = 6.0
    assert places.follow(taken=12, cache_use=1.0, preemptions=9) == 12
    assert places.follow(taken=12, cache_use=1.0, preemptions=10) == 9


def test_unused_places_do_not_count_as_free_cache() -> None:
    assert Places(100, clock=Clock()).follow(taken=8, cache_use=1.0, preemptions=1) == 6


def test_one_place_a_second_is_added_while_all_are_used_and_the_cache_has_free_blocks() -> None:
    clock = Clock()
    places = Places(4, clock=clock)
    assert places.follow(taken=4, cache_use=1.0, preemptions=1) == 3
    clock.now = 10.0
    assert places.follow(taken=3, cache_use=0.95, preemptions=1) == 3
    assert places.follow(taken=2, cache_use=0.5, preemptions=1) == 3
    assert places.follow(taken=3, cache_use=0.5, preemptions=1) == 4
    clock.now = 10.5
    assert places.follow(taken=4, cache_use=0.5, preemptions=1) == 4
    clock.now = 20.0
    assert places.follow(taken=4, cache_use=0.5, preemptions=1) == 4


def test_a_preemption_right_after_an_increase_removes_places() -> None:
    clock = Clock()
    places = Places(16, clock=clock)
    assert places.follow(taken=16, cache_use=1.0, preemptions=1) == 12
    clock.now = 6.0
    assert places.follow(taken=12, cache_use=0.5, preemptions=1) == 13
    clock.now = 6.2
    assert places.follow(taken=13, cache_use=1.0, preemptions=2) == 9


def test_one_place_always_remains() -> None:
    clock = Clock()
    places = Places(2, clock=clock)
    for preemptions in range(1, 6):
        clock.now += 10
        assert places.follow(taken=1, cache_use=1.0, preemptions=preemptions) >= 1
