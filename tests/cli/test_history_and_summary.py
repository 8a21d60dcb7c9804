"""The numbers of summary.json are computed from metrics.jsonl."""

import json
from pathlib import Path

import pytest
from slipstream.cli.launch.history import History, Tail, read_history
from slipstream.cli.launch.summary import describe, staleness_counts, staleness_mean, summarize
from slipstream.records import Ledger


def step(number: int, **values: object) -> dict[str, object]:
    return {"event": "step", "step": number, **values}


def history(*rows: dict[str, object]) -> History:
    made = History()
    for row in rows:
        made.add(row)
    return made


def test_an_incomplete_line_is_read_when_it_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    tail = Tail(file)
    assert tail.rows() == []
    file.write_text('{"event": "step", "step": 1}\n{"event": "st')
    assert tail.rows() == [step(1)]
    with file.open("a") as stream:
        stream.write('ep", "step": 2}\n')
    assert tail.rows() == [step(2)]
    assert tail.rows() == []


def test_lines_that_are_no_json_objects_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('nonsense\n[1]\n\n{"event": "step", "step": 1}\n')

    assert list(read_history(file).steps) == [1]


def test_a_step_repeated_after_a_resume_counts_once_with_its_last_row() -> None:
    rows = history(
        step(1, completions=10, elapsed_seconds=1.0),
        step(2, completions=10, elapsed_seconds=2.0),
        step(3, completions=10, elapsed_seconds=3.0),
        {"event": "resumed", "step": 1},
        step(2, completions=7, elapsed_seconds=1.5),
    )

    summary = summarize(rows, ledger=None, orphans=0, interrupted=True)

    assert summary["steps"] == 2
    assert summary["completions_trained"] == 17
    assert summary["loop_seconds"] == 4.5


def test_staleness_is_weighted_by_tokens() -> None:
    rows = history(
        step(1, staleness_histogram={"0": 30, "2": 0}, staleness_mean=0.0),
        step(2, staleness_histogram={"0": 0, "2": 10}, staleness_mean=2.0),
    )

    assert staleness_counts(rows) == {"0": 30, "2": 10}
    assert staleness_mean(rows) == 0.5


def test_buckets_of_age_are_in_order() -> None:
    rows = history(step(1, staleness_histogram={">8": 1, "3-4": 2, "0": 3, "5-8": 4, "10": 5}))

    assert list(staleness_counts(rows)) == ["0", "3-4", "5-8", ">8", "10"]


def test_without_a_histogram_the_means_of_steps_are_weighted() -> None:
    rows = history(
        step(1, staleness_mean=1.0, tokens_trained=30), step(2, staleness_mean=3.0, tokens_trained=10)
    )

    assert staleness_mean(rows) == 1.5


def test_a_session_that_lost_every_step_counts_its_seconds_and_none_of_its_rows() -> None:
    rows = history(
        step(1, completions=10, elapsed_seconds=4.0, wait_seconds=3.0),
        {"event": "resumed", "step": 0},
        step(1, completions=10, elapsed_seconds=2.0, wait_seconds=1.0),
        {"event": "interrupted", "step": 1, "loop_seconds": 6.0, "idle_seconds": 4.0},
    )

    summary = summarize(rows, ledger=None, orphans=0, interrupted=True)

    assert summary["completions_trained"] == 10
    assert summary["loop_seconds"] == 10.0
    assert summary["learner_idle_fraction"] == 0.7


def test_a_run_is_finished_if_the_learner_wrote_that() -> None:
    steps = [step(1), step(2)]

    assert not history(*steps).has_finished(2)
    assert history(*steps, {"event": "finished", "step": 2}).has_finished(2)
    assert not history(*steps, {"event": "finished", "step": 2}).has_finished(3)
    lost = history(*steps, {"event": "finished", "step": 2}, {"event": "resumed", "step": 1})
    assert not lost.has_finished(2)


def test_accuracies_are_those_of_the_first_and_the_last_step() -> None:
    between = {"event": "evaluation", "step": 1, "accuracy": 0.5}
    after = {"event": "evaluation", "step": 2, "accuracy": 0.7}

    incomplete = summarize(history(between, step(1), step(2)), ledger=None, orphans=0, interrupted=True)
    complete = summarize(history(step(1), step(2), between, after), ledger=None, orphans=0, interrupted=False)

    assert incomplete["held_out_accuracy_before"] is None
    assert incomplete["held_out_accuracy_after"] is None
    assert complete["held_out_accuracy_after"] == 0.7


def test_an_interrupted_run_shows_the_last_accuracy_that_was_measured() -> None:
    start, between = ({"event": "evaluation", "step": at, "accuracy": 0.3 + at} for at in (0, 1))
    rows = history(start, step(1), between, step(2), {"event": "interrupted", "step": 2})
    summary = summarize(rows, ledger=None, orphans=0, interrupted=True)

    assert (summary["held_out_accuracy_last"], summary["held_out_step_last"]) == (1.3, 1)
    assert "held-out accuracy 0.300 → 1.300 at step 1, the last one measured" in describe(summary)
    only_start = summarize(history(start, step(1)), ledger=None, orphans=0, interrupted=True)
    assert "held-out accuracy 0.300 at the start, not measured since" in describe(only_start)


def test_the_summary_has_the_filtered_groups() -> None:
    ledger = Ledger(leased=8, inserted=8, trained=1, filtered={"zero_variance": 6, "unscored": 1})
    lines = describe(summarize(history(), ledger=ledger, orphans=0, interrupted=False))
    assert "88% of 8 groups filtered: zero_variance 6, unscored 1" in lines


def test_a_single_evaluation_is_before_and_not_after() -> None:
    rows = history({"event": "evaluation", "step": 0, "accuracy": 0.3})

    summary = summarize(rows, ledger=None, orphans=0, interrupted=True)

    assert (summary["held_out_accuracy_before"], summary["held_out_accuracy_after"]) == (0.3, None)


def test_the_residual_is_that_of_the_ledger() -> None:
    ledger = Ledger(leased=5, inserted=3, running=1, trained=3)

    summary = summarize(History(), ledger=ledger, orphans=2, interrupted=False)

    assert summary["ledger_residual"] == 1
    assert summary["orphans"] == 2
    assert json.loads(json.dumps(summary))["ledger"]["leased"] == 5


def test_an_empty_run_has_a_summary() -> None:
    summary = summarize(History(), ledger=None, orphans=0, interrupted=True)

    assert (summary["steps"], summary["loop_seconds"], summary["learner_idle_fraction"]) == (0, 0, 0.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, "text", None])
def test_what_is_no_finite_number_counts_as_missing(value: object) -> None:
    history = History()
    history.add({"event": "step", "step": 1, "loss": 0.5, "wait_seconds": value})
    history.add({"event": "step", "step": 2, "loss": value})
    assert history.column("loss") == [(1, 0.5)]
    assert history.total("wait_seconds") == 0.0
