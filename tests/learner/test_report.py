"""The learner's output is what its readers expect: metrics.jsonl, samples.jsonl and the metrics endpoint."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learner.fakes import completion, contrast, group, read_text, step_result
from prometheus_client import generate_latest
from slipstream.cli.launch.columns import columns
from slipstream.cli.launch.history import read_history
from slipstream.cli.launch.summary import summarize
from slipstream.learner.broadcast.publisher import Published
from slipstream.learner.report import Report, Timing
from slipstream.learner.training.record import StepResult
from slipstream.records import Evaluation, Generated, Group
from slipstream.telemetry.metrics import Metrics

PUBLISHED = Published(rollouts=2, seconds=0.3, pause_seconds=0.1, transfer_seconds=0.06)
TIMING = Timing(elapsed=8.0, wait=1.0, train=2.5, publish=0.5, copy_wait=0.25)
EVALUATION = Evaluation(
    done=True,
    version=4,
    completions=8,
    errors=1,
    accuracy=0.75,
    best_of_n=0.9,
    majority=0.8,
    mean_version=4.5,
)


def write_step(
    report: Report, groups: list[Group], result: StepResult | None = None, *, version: int = 5
) -> Any:
    result = result or step_result(
        clip_fraction_low=0.1, clip_fraction_high=0.2, over_age_fraction=0.3, tokens=13.0
    )
    return report.step(
        version, groups, result, PUBLISHED, TIMING, weights={"exact_match": 2.0}, generated=Generated()
    )


def strict_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, read as a browser would: NaN is not JSON."""

    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in read_text(path).splitlines()]


def test_a_step_row_has_every_key_that_the_command_shows_and_sums_up(tmp_path: Path) -> None:
    metrics = Metrics()
    report = Report(tmp_path, metrics)
    row = write_step(report, [contrast(version=4), contrast(version=3)])
    shown = columns(row, read_history(tmp_path / "metrics.jsonl"), steps=10)
    assert shown == {
        "step": "5/10",
        "reward": "1.000",
        "held-out": "–",
        "filtered": "–",
        "truncated": "0%",
        "staleness": "0.50 max 1",
        "clip low/high": "0.1000/0.2000",
        "tokens/s": "2",
        "idle": "25%",
        "workers": "2",
        "version": "5",
        "time left": "–",
    }
    report.evaluation(0, EVALUATION)
    report.evaluation(5, EVALUATION)
    (_, evaluated) = read_history(tmp_path / "metrics.jsonl").evaluations.values()
    assert (evaluated["accuracy"], evaluated["best_of_n"], evaluated["majority"]) == (0.75, 0.9, 0.8)
    nothing = replace(EVALUATION, completions=0, accuracy=None, best_of_n=None, majority=None)
    report.evaluation(7, nothing)
    unscored = read_history(tmp_path / "metrics.jsonl").evaluations[7]
    assert unscored["accuracy"] is None
    assert metrics.registry.get_sample_value("slipstream_held_out_accuracy") == 0.75
    report.event("finished", step=5, loop_seconds=10.0, idle_seconds=2.0)
    summary = summarize(read_history(tmp_path / "metrics.jsonl"), ledger=None, orphans=0, interrupted=False)
    expected = {
        "held_out_accuracy_before": 0.75,
        "held_out_accuracy_after": 0.75,
        "steps": 5,
        "loop_seconds": 10.0,
        "completions_trained": 4,
        "completions_stale": 2,
        "completions_with_several_versions": 0,
        "staleness_mean": 0.5,
        "staleness_max": 1,
        "learner_idle_fraction": 0.2,
    }
    assert {key: summary[key] for key in expected} == expected


def test_the_time_of_an_interrupted_run_is_that_of_its_last_step(tmp_path: Path) -> None:
    report = Report(tmp_path, Metrics())
    write_step(report, [contrast()])
    history = read_history(tmp_path / "metrics.jsonl")
    assert (history.sessions[-1].loop_seconds, history.sessions[-1].idle_seconds) == (8.0, 1.0)


def test_completions_are_counted_by_the_versions_of_their_tokens(tmp_path: Path) -> None:
    groups = [
        group(
            completion(versions=(3, 3, 4)),
            completion(versions=(4, 4, 4), reward=None),
            completion(versions=(3, 3, 3), reward=0.0),
        )
    ]
    row = write_step(Report(tmp_path, Metrics()), groups)
    assert (row["completions"], row["completions_with_several_versions"]) == (2, 1)
    assert (row["completions_stale"], row["completions_withheld"]) == (2, 1)
    assert row["rewards"] == {"exact_match": 0.5}
    assert row["reward_mean"] == 1.0


def test_the_reward_of_a_step_is_that_of_everything_generated_not_of_the_batch(tmp_path: Path) -> None:
    sums, counts = {"exact_match": 7.0}, {"exact_match": 8}
    generated = Generated(groups=4, unvaried_groups=3, reward_sums=sums, reward_counts=counts)
    row = Report(tmp_path, Metrics()).step(
        5, [contrast()], step_result(), PUBLISHED, TIMING, weights={"exact_match": 2.0}, generated=generated
    )
    assert (row["reward_mean"], row["rewards"]) == (2 * 7 / 8, {"exact_match": 7 / 8})
    assert (row["reward_mean_trained"], row["groups_generated"]) == (1.0, 4)
    assert row["unvaried_share"] == 0.75
    assert row["copy_wait_seconds"] == 0.25


def test_a_sample_carries_id_logprob_and_version_of_every_token(tmp_path: Path) -> None:
    report = Report(tmp_path, Metrics())
    first = completion((5, 6), versions=(2, 3), logprobs=(-0.5, -1.5))
    judged = replace(first, rewards=(replace(first.rewards[0], detail="test 1 of 2: late"),))
    report.samples(4, [group(judged, completion()), contrast()], count=1)
    (sample,) = strict_rows(tmp_path / "samples.jsonl")
    assert sample["tokens"] == [
        {"id": 5, "logprob": -0.5, "version": 2},
        {"id": 6, "logprob": -1.5, "version": 3},
    ]
    assert (sample["step"], sample["prompt"], sample["answer"]) == (4, "2+2=", "4")
    assert sample["prompt_tokens"] == 2
    assert (sample["rewards"], sample["finish_reason"]) == ({"exact_match": 1.0}, "stop")
    assert sample["details"] == {"exact_match": "test 1 of 2: late"}


def test_numbers_that_are_not_finite_are_null_in_the_files(tmp_path: Path) -> None:
    report = Report(tmp_path, Metrics())
    write_step(report, [contrast()], step_result(loss=math.nan, max_ratio=math.inf))
    report.samples(1, [group(completion((5,), logprobs=(-math.inf,)), completion())], count=1)
    (row,) = strict_rows(tmp_path / "metrics.jsonl")
    assert (row["loss"], row["max_ratio"]) == (None, None)
    assert strict_rows(tmp_path / "samples.jsonl")[0]["tokens"][0]["logprob"] is None


def test_a_step_that_was_not_finite_does_not_poison_the_metrics_of_later_ones(tmp_path: Path) -> None:
    metrics = Metrics()
    report = Report(tmp_path, metrics)
    write_step(report, [contrast()], step_result(bad=1, mean_ratio=math.nan))
    write_step(report, [contrast()], step_result())
    page = generate_latest(metrics.registry).decode()
    assert "slipstream_ratio_sum 20.0\n" in page
    assert "slipstream_bad_steps_total 1.0\n" in page


def test_the_metrics_of_a_step_are_those_of_its_row(tmp_path: Path) -> None:
    metrics = Metrics()
    of_age_1 = {
        "trained_tokens": 10.0,
        "trained_tokens_positive": 6.0,
        "trained_tokens_negative": 3.0,
        "trained_tokens_zero": 1.0,
        "clip_fraction_low_negative": 1 / 3,
        "clip_fraction_high_positive": 0.5,
        "mean_ratio_positive": 1.25,
    }
    result = step_result(by_staleness={"1": of_age_1}, tokens=13.0)
    write_step(Report(tmp_path, metrics), [contrast()], result)
    page = generate_latest(metrics.registry).decode()
    for line in (
        'slipstream_tokens_trained_total{sign="positive",staleness="1"} 6.0',
        'slipstream_tokens_trained_total{sign="zero",staleness="1"} 1.0',
        'slipstream_ratio_mean{sign="positive",staleness="1"} 1.25',
        'slipstream_ratio_mean{sign="positive",staleness="0"} NaN',
        'slipstream_staleness_versions_bucket{le="0.0"} 5.0',
        "slipstream_staleness_versions_count 10.0",
        'slipstream_tokens_masked_total{reason="over_age"} 3.0',
        'slipstream_clipped_tokens_total{side="low",sign="negative",staleness="1"} 1.0',
        'slipstream_clipped_tokens_total{side="high",sign="positive",staleness="1"} 3.0',
        'slipstream_reward_mean{reward="exact_match"} 0.5',
        "slipstream_model_flops_total 3000.0",
        'slipstream_step_seconds_sum{phase="train"} 2.5',
        "slipstream_copy_wait_seconds_sum 0.25",
        'slipstream_completion_tokens_sum{kind="trained"} 5.0',
        'slipstream_completion_tokens_count{kind="trained"} 2.0',
    ):
        assert f"{line}\n" in page


def test_rows_are_appended_to_those_of_an_earlier_life(tmp_path: Path) -> None:
    for _ in range(2):
        report = Report(tmp_path, Metrics())
        report.event("resumed", step=3)
        report.close()
    assert [row["event"] for row in strict_rows(tmp_path / "metrics.jsonl")] == ["resumed"] * 2


def test_a_reward_that_the_run_does_not_know_is_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="surprise"):
        write_step(Report(tmp_path, Metrics()), [group(completion(name="surprise"))])
