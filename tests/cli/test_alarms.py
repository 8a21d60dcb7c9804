"""Alarms in words: each is raised by the rows of its condition, and by no healthy run."""

from typing import Any

import pytest
from cli.runs import START, a_config, a_step, an_evaluation
from slipstream.cli.launch.alarms import Alarm, find_alarms, time_shares
from slipstream.cli.launch.history import History
from slipstream.records import Admission, Ledger, ReplayStats

STEPS = 20
NOW = START + 10.0 * STEPS + 5.0


def a_history(last: int = STEPS, **values: Any) -> History:
    """Return healthy steps, of which the last ones have these values."""
    history = History()
    history.add(an_evaluation(0, 0.25))
    for step in range(1, STEPS + 1):
        history.add(a_step(step, **(values if step > STEPS - last else {})))
    return history


def only(alarms: list[Alarm]) -> Alarm:
    (alarm,) = alarms
    return alarm


def test_a_healthy_run_has_no_alarm() -> None:
    ledger = Ledger(leased=100, inserted=90, running=10, trained=80, filtered={"zero_variance": 10})
    assert find_alarms(a_history(), config=a_config(), ledger=ledger, now=NOW) == []


@pytest.mark.parametrize("history", [History(), a_history(last=0)])
def test_without_a_configuration_and_a_ledger_there_is_no_alarm(history: History) -> None:
    assert find_alarms(history) == []


@pytest.mark.parametrize(
    ("name", "severity", "values", "words"),
    [
        ("no_rollout", "error", {"workers": 0}, "no rollout received the last version"),
        ("collapsing", "error", {"collapsing": True}, "the policy collapses"),
        ("bad_steps", "error", {"bad_steps": 1}, "20 of the last 20 steps changed nothing"),
        (
            "unchanged",
            "error",
            {"weights_changed": 0.0, "learning_rate": 1e-5, "gradient_norm": 0.1},
            "20 of the last 20 steps published the same",
        ),
        (
            "equal_rewards",
            "warning",
            {"unvaried_share": 0.85},
            "85% or more of the groups have equal rewards",
        ),
        ("idle", "warning", {"wait_seconds": 27.0}, "the learner waits for groups 75% of its time"),
        ("over_age", "warning", {"over_age_fraction": 0.25}, "25% of the tokens are older than"),
        ("clipped", "warning", {"clip_fraction_low": 0.5}, "the low end of the band clips 50% of the tokens"),
        ("clipped", "warning", {"clip_fraction_high": 0.5}, "the high end of the band clips 50%"),
        ("truncated", "warning", {"truncated_fraction": 0.75}, "75% of the answers end at their bound"),
        ("withheld", "warning", {"completions_withheld": 32}, "50% of the completions could not be scored"),
        (
            "unmoved",
            "note",
            {"clip_fraction_low": 0.0, "clip_fraction_high": 0.0, "p99_ratio": 1.001},
            "nothing is clipped, and 99% of the ratios are below 1.0010",
        ),
    ],
)
def test_a_condition_of_the_newest_steps_is_an_alarm(
    name: str, severity: str, values: dict[str, Any], words: str
) -> None:
    alarm = only(find_alarms(a_history(**values), config=a_config(), now=NOW))
    assert (alarm.name, alarm.severity) == (name, severity)
    assert words in alarm.words
    assert alarm.action


@pytest.mark.parametrize(
    ("ledger", "name", "words"),
    [
        (Ledger(leased=5, inserted=3, trained=3), "residual", "its residual is 2"),
        (Ledger(leased=9, returned=9, retired={"group_timeout": 3}), "retired", "3 prompts were given up"),
        (
            Ledger(leased=100, inserted=100, trained=10, filtered={"zero_variance": 90}),
            "filtered",
            "90% of the groups are filtered",
        ),
    ],
)
def test_the_ledger_raises_alarms(ledger: Ledger, name: str, words: str) -> None:
    alarm = only(find_alarms(a_history(), config=a_config(), ledger=ledger))
    assert alarm.name == name
    assert words in alarm.words


def test_the_ledger_of_the_history_counts_unless_another_is_passed() -> None:
    history = a_history()
    broken = Ledger(leased=5, inserted=3, trained=3)
    history.replay = ReplayStats(ledger=broken, version=1, admission_free=0, kept=0)
    assert only(find_alarms(history)).name == "residual"
    assert find_alarms(history, ledger=Ledger()) == []


def test_few_inserted_groups_say_nothing_on_the_filtered_share() -> None:
    few = Ledger(leased=11, inserted=11, filtered={"zero_variance": 11})
    assert find_alarms(a_history(), config=a_config(), ledger=few) == []
    history = a_history()
    history.filtered_share = 0.9
    assert only(find_alarms(history, config=a_config(), ledger=few)).name == "filtered"


def test_a_single_step_with_equal_rewards_is_no_alarm() -> None:
    assert find_alarms(a_history(last=2, unvaried_share=1.0), config=a_config()) == []


def test_equal_rewards_are_no_alarm_where_only_a_teacher_trains() -> None:
    taught = a_config(algorithm={"distillation": {"reward_weight": 0.0}}, teacher={"path": "/models/teacher"})
    assert find_alarms(a_history(unvaried_share=1.0), config=taught) == []


def test_an_earlier_bad_step_is_a_warning() -> None:
    history = a_history()
    history.add(a_step(STEPS - 3, bad_steps=1))
    alarm = only(find_alarms(history))
    assert (alarm.severity, alarm.words.split(":")[0]) == (
        "warning",
        "1 of the last 20 steps changed nothing",
    )


@pytest.mark.parametrize(("kind", "alarms"), [("ppo_clip", ["clipped"]), ("gspo", []), ("pg", [])])
def test_the_limit_of_the_clip_fraction_is_that_of_the_objective(kind: str, alarms: list[str]) -> None:
    config = a_config(algorithm={"objective": {"kind": kind}})
    history = a_history(clip_fraction_high=0.3)
    assert [alarm.name for alarm in find_alarms(history, config=config)] == alarms


def test_the_advice_on_an_idle_learner_depends_on_the_depth_of_the_pipeline() -> None:
    history = a_history(wait_seconds=27.0)
    synchronous = a_config(staleness={"pipeline_depth": 0})
    assert "at 0 the learner waits" in only(find_alarms(history, config=synchronous)).action
    assert "rollout.workers" in only(find_alarms(history, config=a_config())).action


@pytest.mark.parametrize(("seconds", "alarms"), [(115.0, []), (125.0, ["silent"])])
def test_a_run_without_a_step_for_long_is_an_alarm(seconds: float, alarms: list[str]) -> None:
    now = START + 10.0 * STEPS + seconds
    assert [alarm.name for alarm in find_alarms(a_history(), now=now)] == alarms
    assert find_alarms(a_history()) == []  # the run is not running


def test_after_the_last_step_the_learner_may_be_silent() -> None:
    history, later = a_history(), START + 10_000.0
    assert [alarm.name for alarm in find_alarms(history, config=a_config(), now=later)] == ["silent"]
    done = a_config(learner={"steps": STEPS, "groups_per_step": 4})
    assert find_alarms(history, config=done, now=later) == []


def test_an_evaluation_ends_the_silence() -> None:
    history = a_history()
    history.add({**an_evaluation(STEPS, 0.5), "time": START + 10.0 * STEPS + 100.0})
    assert find_alarms(history, now=START + 10.0 * STEPS + 125.0) == []


@pytest.mark.parametrize("from_history", [True, False])
def test_a_paused_run_is_not_silent(from_history: bool) -> None:
    history, later = a_history(), START + 10_000.0
    pause = Admission(paused=True, seconds=600.0, since=START + 9_400.0, by="anna", reason="new\ndisk")
    if from_history:
        history.replay = ReplayStats(ledger=Ledger(), version=1, admission_free=0, kept=0, admission=pause)
    alarm = only(find_alarms(history, now=later, paused=None if from_history else pause))
    assert (alarm.name, alarm.severity) == ("paused", "note")
    assert alarm.words == "paused by anna for 10m 00s: new disk"
    assert alarm.action == "`slipstream control resume` ends the pause"


def test_the_end_of_a_pause_ends_the_silence() -> None:
    resumed = Admission(seconds=5.0, since=START + 9_995.0)
    assert find_alarms(a_history(), now=START + 10_000.0, paused=resumed) == []
    assert only(find_alarms(a_history(), now=START + 10_200.0, paused=resumed)).name == "silent"


def test_errors_come_first() -> None:
    history = a_history(workers=0, truncated_fraction=0.9, collapsing=True)
    assert [alarm.severity for alarm in find_alarms(history)] == ["error", "error", "warning"]


def test_a_row_with_values_of_other_types_raises_nothing() -> None:
    history = History()
    row = a_step(1)
    for step in range(1, 6):
        history.add({**dict.fromkeys(row, "text"), "event": "step", "step": step})
    assert find_alarms(history, config=a_config(), now=NOW) == []


def test_the_shares_of_the_time_sum_to_one() -> None:
    shares = time_shares([a_step(1), a_step(2, wait_seconds=3.0)])
    assert shares == pytest.approx({"wait": 4 / 22, "train": 16 / 22, "publish": 2 / 22})
    assert time_shares([]) == {}
