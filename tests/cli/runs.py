"""Run directories for tests of commands that read them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from slipstream.cli.launch.run_directory import RunDirectory
from slipstream.config import RunConfig, parse_config

Row = dict[str, Any]
START = 1_700_000_000.0
"""Time of the first row, in seconds since 1970."""


def a_config(**sections: Any) -> RunConfig:
    """Return a configuration named job with 40 steps of 4 groups."""
    learner = {"steps": 40, "groups_per_step": 4}
    return parse_config({"name": "job", "model": {"tiny": {}}, "learner": learner, **sections})


def a_step(step: int, **values: Any) -> Row:
    """Return the row of a healthy step of 10 seconds."""
    row: Row = {
        "event": "step",
        "step": step,
        "version": step,
        "time": START + 10.0 * step,
        "elapsed_seconds": 10.0 * step,
        "reward_mean": 0.25 + 0.01 * step,
        "rewards": {"exact_match": 0.2 + 0.01 * step},
        "staleness_mean": 1.5,
        "staleness_max": 3,
        "staleness_histogram": {"0": 10, "1": 40, "2": 10, "3-4": 5, "5-8": 0, ">8": 0},
        "over_age_fraction": 0.0,
        "clip_fraction_low": 0.001,
        "clip_fraction_high": 0.02,
        "p99_ratio": 1.3,
        "tokens_per_second": 5000.0 + step,
        "idle_fraction": 0.1,
        "wait_seconds": 1.0,
        "train_seconds": 8.0,
        "publish_seconds": 1.0,
        "completions": 32,
        "completions_withheld": 0,
        "truncated_fraction": 0.125,
        "unvaried_share": 0.1,
        "bad_steps": 0,
        "collapsing": False,
        "workers": 2,
    }
    return {**row, **values}


def an_evaluation(step: int, accuracy: float | None) -> Row:
    """Return the row of an evaluation."""
    return {"event": "evaluation", "step": step, "time": START + 10.0 * step, "accuracy": accuracy}


def some_rows(steps: int) -> list[Row]:
    """Return the rows of a healthy run, with an evaluation before the first step and after the last one."""
    steps_done = [a_step(step) for step in range(1, steps + 1)]
    return [an_evaluation(0, 0.25), *steps_done, an_evaluation(steps, 0.75)]


def make_run(
    path: Path,
    rows: Iterable[Mapping[str, Any]],
    *,
    config: RunConfig | None = None,
    summary: Mapping[str, Any] | None = None,
) -> RunDirectory:
    """Write the directory of a run with these rows."""
    run = RunDirectory(path)
    run.make_folders()
    made = config or a_config()
    run.write_config(made, source=made)
    run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    if summary is not None:
        run.summary.write_text(json.dumps(summary), encoding="utf-8")
    return run


NO_NUMBERS = ("NaN", "-Infinity", f"1{'0' * 400}", "1e400")
"""Numbers that the json of Python reads, and that are not finite as floats."""


def with_every_number_as(number: str, row: Row) -> Row:
    """Return a row as it is read from a file where each number but the step is the text `number`."""

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: replaced(each) for name, each in value.items()}
        return json.loads(number) if isinstance(value, int | float) and not isinstance(value, bool) else value

    return {**replaced(row), "step": row["step"]}
