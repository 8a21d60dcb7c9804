"""Diversity of a group's completions, and the alarm when diversity falls."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream.algorithms.shaping import WATCHED, CollapseWatch, GroupSample, diversity
from slipstream.algorithms.spec import CollapseAlarm

HIGH = {"token_entropy": 2.0, "distinct_2": 0.8, "reward_std": 0.4}
LOW = {name: 0.4 * value for name, value in HIGH.items()}


def group(*ids: tuple[int, ...], texts: tuple[str, ...] = (), rewards: tuple[float, ...] = ()) -> GroupSample:
    return GroupSample(token_ids=ids, texts=texts, task_rewards=rewards)


def test_the_metrics_of_one_group_worked_by_hand() -> None:
    metrics = diversity(
        [group((1, 2, 1), (1, 2, 3), (1, 2, 1), texts=("4", " 4\n", "IV"), rewards=(1.0, 1.0, 0.0))]
    )
    # Tokens: 3 different of 9. Pairs: 12 21 12 23 12 21, 3 of 6. Triples: 121 123 121, 2 of 3.
    # Rewards: mean 2/3, squares (1/9 + 1/9 + 4/9) / 2 = 1/3.
    assert metrics == pytest.approx(
        {
            "distinct_1": 3 / 9,
            "distinct_2": 3 / 6,
            "distinct_3": 2 / 3,
            "duplicate_share": 1 / 3,
            "answer_cluster_count": 2.0,
            "reward_std": math.sqrt(1 / 3),
            "zero_variance_share": 0.0,
        }
    )


def test_metrics_are_means_over_the_groups_that_have_them() -> None:
    metrics = diversity(
        [
            group((1,), (1,), texts=("a", "a"), rewards=(1.0, 1.0)),
            group((1, 2), (3, 4), texts=("a", "b"), rewards=(0.0,)),
        ]
    )
    # Pairs exist in the second group alone; a deviation in the first alone.
    assert metrics["distinct_1"] == (0.5 + 1.0) / 2
    assert metrics["distinct_2"] == 1.0
    assert math.isnan(metrics["distinct_3"])
    assert metrics["duplicate_share"] == (0.5 + 0.0) / 2
    assert metrics["answer_cluster_count"] == 1.5
    assert metrics["reward_std"] == 0.0
    assert metrics["zero_variance_share"] == 1.0


def test_of_no_groups_nothing_is_known() -> None:
    assert all(math.isnan(value) for value in diversity([]).values())
    assert all(math.isnan(value) for value in diversity([group()]).values())


def test_equal_rewards_that_rounding_tells_apart_have_no_variance() -> None:
    assert diversity([group((1,), (2,), rewards=(0.1 * 3, 0.3))])["zero_variance_share"] == 1.0


@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=6), min_size=1, max_size=6))
def test_repeating_a_group_can_only_lower_its_distinct_n(completions: list[list[int]]) -> None:
    ids = tuple(tuple(completion) for completion in completions)
    once, twice = diversity([group(*ids)]), diversity([group(*ids, *ids)])
    for name in ("distinct_1", "distinct_2", "distinct_3"):
        assert twice[name] == pytest.approx(once[name] / 2)
    assert twice["duplicate_share"] >= 0.5


def play(*steps: dict[str, float], window: int = 2, share: float = 0.5) -> list[bool]:
    watch, alarms = CollapseWatch(spec=CollapseAlarm(window=window, share=share)), []
    for metrics in steps:
        watch, alarm = watch.after(metrics)
        alarms.append(alarm)
    return alarms


def test_the_alarm_is_raised_when_the_mean_of_all_three_is_below_their_share() -> None:
    # Level 2.0; means of two: 2.0, 2.0, 1.4, 0.8, 1.4: below 1.0 at the fifth step alone.
    assert play(HIGH, HIGH, HIGH, LOW, LOW, HIGH) == [False, False, False, False, True, False]


@pytest.mark.parametrize("steady", WATCHED)
def test_two_that_fall_without_the_third_raise_no_alarm(steady: str) -> None:
    almost = LOW | {steady: HIGH[steady]}
    assert not any(play(HIGH, HIGH, *[almost] * 6))


def test_the_level_is_that_of_the_first_steps_and_no_later_one() -> None:
    # A slow fall, never more than 5 % a step, is seen all the same.
    steps = [{name: value * 0.95**step for name, value in HIGH.items()} for step in range(40)]
    alarms = play(*steps)
    # The mean of steps k and k-1 falls below half of that of 0 and 1 when 0.95^(k-1) < 0.5: at k = 15.
    assert alarms.index(True) == 15
    assert all(alarms[15:])


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_a_step_that_lacks_a_metric_is_left_out(value: float | None) -> None:
    lacking = {name: v for name, v in LOW.items() if name != "reward_std"}
    if value is not None:
        lacking["reward_std"] = value
    assert play(HIGH, lacking, HIGH, lacking, LOW, LOW) == [False, False, False, False, False, True]


def test_what_was_never_there_cannot_fall() -> None:
    nothing = dict.fromkeys(WATCHED, 0.0)
    assert not any(play(*[nothing] * 5))


def test_a_watch_survives_a_checkpoint() -> None:
    spec = CollapseAlarm(window=2, share=0.5)
    watch = CollapseWatch(spec=spec)
    for metrics in (HIGH, HIGH, LOW):
        watch, _ = watch.after(metrics)
    again = CollapseWatch.from_dict(spec, json.loads(json.dumps(watch.to_dict())))
    assert again == watch
    assert again.after(LOW)[1] is True


def test_after_returns_a_new_watch_and_leaves_the_old_one() -> None:
    watch = CollapseWatch(spec=CollapseAlarm())
    watch.after(HIGH)
    assert watch == CollapseWatch(spec=CollapseAlarm())
