"""When a rollout counts as silent."""

import pytest
from slipstream.learner.broadcast import liveness
from slipstream.learner.broadcast.liveness import Liveness

SECONDS = 1.0
POLL = 0.05


class Clock:
    """A clock that a test moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(liveness.time, "monotonic", lambda: self.now)

    def silent_within(self, rollout: Liveness, seconds: float) -> bool:
        """Ask at each poll; return whether the rollout came to be silent."""
        end = self.now + seconds
        while self.now < end:
            if rollout.silent(SECONDS):
                return True
            self.now += POLL
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_rollout_that_never_answers_is_silent_after_the_time_and_not_before(clock: Clock) -> None:
    pings: list[int] = []
    rollout = Liveness(pings.append)
    assert not clock.silent_within(rollout, SECONDS - POLL)
    assert clock.silent_within(rollout, 6 * POLL)
    assert pings == [1], "an unanswered ping is not repeated"


def test_whether_a_rollout_fell_silent_is_known_without_a_further_ping(clock: Clock) -> None:
    pings: list[int] = []
    rollout = Liveness(pings.append)
    assert clock.silent_within(rollout, 2 * SECONDS)
    rollout.answered(1)
    assert not rollout.fell_silent
    clock.now += 10 * SECONDS
    assert not rollout.fell_silent
    assert pings == [1]


def test_a_rollout_that_answers_is_never_silent(clock: Clock) -> None:
    pings: list[int] = []

    def answer_at_once(number: int) -> None:
        pings.append(number)
        rollout.answered(number)

    rollout = Liveness(answer_at_once)
    assert not clock.silent_within(rollout, 10 * SECONDS)
    assert len(pings) > 30
    assert pings == sorted(set(pings))


def test_a_rollout_of_an_earlier_release_is_asked_nothing_and_never_silent(clock: Clock) -> None:
    assert not clock.silent_within(Liveness(None), 10 * SECONDS)


def test_a_late_answer_ends_the_silence(clock: Clock) -> None:
    rollout = Liveness(lambda number: None)
    assert clock.silent_within(rollout, 2 * SECONDS)
    rollout.answered(1)
    assert not rollout.silent(SECONDS)


def test_a_rollout_that_was_silent_has_the_whole_time_again_in_the_next_publication(clock: Clock) -> None:
    rollout = Liveness(lambda number: None)
    assert clock.silent_within(rollout, 2 * SECONDS)
    rollout.begin()
    assert not clock.silent_within(rollout, SECONDS - POLL)
    assert clock.silent_within(rollout, 6 * POLL)


def test_a_learner_that_was_stopped_does_not_take_the_rollout_for_silent(clock: Clock) -> None:
    rollout = Liveness(lambda number: None)
    assert not rollout.silent(SECONDS)
    clock.now += 60 * SECONDS
    assert not rollout.silent(SECONDS), "the answer may wait in the learner's own queue"
    rollout.answered(1)
    assert not clock.silent_within(rollout, SECONDS - POLL)
