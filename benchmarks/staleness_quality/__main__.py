"""Accuracy by staleness: the same samples, trained on at once or several versions later.

    python -m benchmarks.staleness_quality [--steps N] [--seeds 0 1 2] [--depths 0 2 4 8] [--objectives ...]
                                           [--learning-rate X] [--groups N] [--results FILE]

The learner is the real one (learner/training/step.py), and so are the task and the rewards; the model is
cold-started by `slipstream warmup`, and kept. The engine is a sampler in this process, and replay is a
queue: the batch that is trained on at version v was sampled by version max(0, v - depth), the age at which
pipeline_depth holds the mean in a run. That isolates age. Left out are completions whose tokens are of
several versions, the spread of ages within a batch, and the difference between the engine's arithmetic and
the learner's.

Every objective has the parameters and the aggregation of its preset and the advantage of GRPO. With one seed
all runs start from the same prompts and draws. Finished runs are appended to the results file, one JSON
object a line, and are not repeated: an interrupted benchmark goes on where it was, and several processes may
share the file. The file belongs to one commit: nothing in it tells by which code its runs were made.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

import torch
from slipstream.config import RunConfig, parse_config
from slipstream.learner.policy.loading import without_progress_bars
from slipstream.learner.training.step import TrainingStep
from slipstream.prompts import make_source

from benchmarks.aged_training import cold_started, share_right, train, warmed_up
from benchmarks.circle import ADDITION, GRPO, Job, laid_over
from benchmarks.ratio import print_ratio
from benchmarks.sampler import Sampler
from benchmarks.staleness_quality.report import report

JOB: Job = laid_over(ADDITION, {"evaluation": {"prompts": 256, "samples_per_prompt": 4}})
OBJECTIVES: Mapping[str, Job] = {
    "ppo_clip": {},
    "cispo": {
        "objective": {"kind": "cispo", "clip_low": None, "clip_high": 4.0},
        "aggregation": "token_mean",
    },
    "gspo": {"objective": {"kind": "gspo", "clip_low": 3e-4, "clip_high": 4e-4}},
    "sapo": {"objective": {"kind": "sapo", "tau_pos": 1.0, "tau_neg": 1.05}},
    "pg": {"objective": {"kind": "pg", "allow_uncorrected": True}},
}
"""The parts of each objective that differ from GRPO."""
HELD_OUT_SAMPLES = 8
"""Answers to each held-out prompt, sampled with the same seeds before and after every run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The settings in which runs differ."""

    objective: str
    depth: int
    seed: int
    steps: int
    groups: int
    learning_rate: float

    def config(self) -> RunConfig:
        """Return the job with these settings."""
        changes = {
            "algorithm": {**GRPO, **OBJECTIVES[self.objective]},
            "staleness": {"pipeline_depth": self.depth, "max_staleness": self.depth},
            "learner": {
                "steps": self.steps,
                "groups_per_step": self.groups,
                "learning_rate": self.learning_rate,
                "device": "cpu",
            },
        }
        return parse_config(laid_over(JOB, changes))


def accuracy(sampler: Sampler, config: RunConfig) -> float:
    """Return the share of right answers to all held-out prompts, sampled at the training temperature."""
    source = make_source(config.data, seed=config.seed)
    prompts = [source.held_out(index) for index in range(source.held_out_size or config.evaluation.prompts)]
    groups = sampler.groups(prompts, version=0, size=HELD_OUT_SAMPLES, seed=0)
    return share_right(groups, config.evaluation.reward)


def run(setting: Setting, model: Path) -> dict[str, Any]:
    """Run the training of a setting, and return its row of the results."""
    began, config = time.monotonic(), setting.config()
    policy, sampler = cold_started(model, config)
    trained = train(TrainingStep(policy, config), sampler, config, depth=setting.depth, seed=setting.seed)
    after = accuracy(sampler, config)
    return {**asdict(setting), "after": after, **trained, "seconds": round(time.monotonic() - began, 1)}


def read(results: Path) -> list[dict[str, Any]]:
    """Return the finished runs of a results file, each setting once; none without a file."""
    if not results.exists():
        return []
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    return list({setting_of(row): row for row in rows}.values())


def setting_of(row: Mapping[str, Any]) -> Setting:
    """Return the setting of a row of the results."""
    return Setting(**{field.name: row[field.name] for field in fields(Setting)})


def missing(settings: Sequence[Setting], rows: Sequence[Mapping[str, Any]]) -> list[Setting]:
    """Return the settings without a row."""
    done = {setting_of(row) for row in rows}
    return [setting for setting in settings if setting not in done]


def complete(settings: Sequence[Setting], results: Path, model: Path) -> None:
    """Run the missing settings, and append each result to the results file."""
    if not missing(settings, read(results)):
        return
    results.parent.mkdir(parents=True, exist_ok=True)
    before = accuracy(cold_started(model, settings[0].config())[1], settings[0].config())
    while left := missing(settings, read(results)):
        row = {**run(left[0], model), "before": before}
        with results.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
        outcome = f"{before:.3f} -> {row['after']:.3f} in {row['seconds']} s"
        print(f"{left[0]}: {outcome}", file=sys.stderr, flush=True)


def print_ratios(rows: Sequence[Mapping[str, Any]]) -> None:
    """Accuracy at the greatest age over that at the smallest, and after training over before, of each
    objective."""
    for name in OBJECTIVES:
        after = {
            depth: statistics.fmean(
                row["after"] for row in rows if row["objective"] == name and row["depth"] == depth
            )
            for depth in sorted({row["depth"] for row in rows if row["objective"] == name})
        }
        if after:
            youngest, oldest = min(after), max(after)
            print_ratio(f"accuracy of {name}, after / before", after[youngest] / rows[0]["before"])
            print_ratio(
                f"accuracy of {name}, depth {oldest} / depth {youngest}", after[oldest] / after[youngest]
            )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--groups", type=int, default=32, help="groups of a step")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 2, 4, 8])
    parser.add_argument("--objectives", choices=OBJECTIVES, nargs="+", default=list(OBJECTIVES))
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--results", type=Path, help="where finished runs are kept; default: nowhere")
    return parser.parse_args()


def main() -> None:
    """Measure the settings that have no result yet, and print the table of all results."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    without_progress_bars()
    model = warmed_up(JOB)
    shared = {"steps": arguments.steps, "groups": arguments.groups, "learning_rate": arguments.learning_rate}
    settings = [
        Setting(objective=objective, depth=depth, seed=seed, **shared)
        for seed, depth, objective in product(arguments.seeds, arguments.depths, arguments.objectives)
    ]
    with tempfile.TemporaryDirectory() as folder:
        results = arguments.results or Path(folder) / "results.jsonl"
        complete(settings, results, model)
        rows = read(results)
    print(f"{report(rows, list(OBJECTIVES))}\n")
    print_ratios(rows)


if __name__ == "__main__":
    main()
