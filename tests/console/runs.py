"""Run directories as `slipstream run` leaves them, with rows and stored completions."""

import json
from pathlib import Path
from random import Random
from typing import Any

from samples.made_up import completion, group, values_of
from samples.test_writer import writing

HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    " [red]rich[/red] \x1b[31mred\x1b[0m \u202egnp.exe\u202c \r\a & </pre> {{7*7}}"
)


def step_row(step: int, **values: Any) -> dict[str, Any]:
    """Return a row of metrics.jsonl."""
    return {
        "event": "step",
        "time": 1_790_000_000.0 + step,
        "step": step,
        "version": step,
        "reward_mean": 0.25 + step / 100,
        "rewards": {"exact_match": 0.2, "format": 0.5},
        "staleness_mean": 1.5,
        "staleness_max": 3,
        "staleness_histogram": {"0": 10, "1": 20, "2": 30, "3-4": 5, "5-8": 0, ">8": 0},
        "clip_fraction_low": 0.01,
        "clip_fraction_high": 0.02,
        "mean_ratio": 1.0,
        "p1_ratio": 0.5,
        "p10_ratio": 0.75,
        "p50_ratio": 1.0,
        "p90_ratio": 1.25,
        "p99_ratio": 1.5,
        "max_ratio": 4.0,
        "tokens_per_second": 1234.5,
        "idle_fraction": 0.1,
        "elapsed_seconds": 2.0 * step,
        "train_seconds": 1.0,
        "wait_seconds": 0.2,
        "publish_seconds": 0.1,
        "token_entropy": 1.25,
        "kl_rollout": 0.001,
        "workers": 1,
        "by_staleness": {"2": {"tokens": 10.0}},
        **values,
    }


def write_rows(run_dir: Path, rows: list[dict[str, Any]]) -> None:
    """Append rows to the metrics of a run."""
    with (run_dir / "metrics.jsonl").open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def make_run(run_dir: Path, *, steps: int = 5, text: str = HOSTILE) -> Path:
    """Make a stopped run with stored completions; the first of each step has `text`."""
    run_dir.mkdir(parents=True)
    (run_dir / "config.yaml").write_text("name: made\nlearner: {steps: 50, groups_per_step: 2}\n")
    rows = [step_row(step) for step in range(1, steps + 1)]
    evaluation = {
        "event": "evaluation",
        "time": 0.0,
        "step": 0,
        "version": 0,
        "accuracy": 0.375,
        "completions": 8,
    }
    write_rows(run_dir, [{**evaluation, "errors": 0}, *rows])
    random = Random(3)
    with writing(run_dir) as writer:
        for step in range(1, steps + 1):
            made = [
                group(f"{step}-0", [completion(random, words=text), completion(random, segments=3)]),
                group(f"{step}-1", [completion(random, failed=True), completion(random)]),
            ]
            sizes = [0 if c.withheld else c.sampled for one in made for c in one.completions]
            writer.put(step, made, values_of(random, sizes))
            writer.wait()
    return run_dir
