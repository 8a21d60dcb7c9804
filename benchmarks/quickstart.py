"""The quickstart: `slipstream run examples/addition.yaml`, as README shows it, and its results.

    python -m benchmarks.quickstart [--plot FILE]
    python -m benchmarks.quickstart --in-process

The second form takes half a minute: the example's algorithm, rewards and schedule on a smaller model and
one-digit sums, sampled in the learner's process (aged_training.py) instead of through vLLM, Redis and
gRPC, each batch as old as the example has it, and four times as old. There are so few such sums that none are
held out: accuracy is that of the batches. The example's filter is replay's and takes no part in it.
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from benchmarks.circle import laid_over
from benchmarks.ratio import print_ratio

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "addition.yaml"
PLOT = ROOT / "docs" / "quickstart-reward.png"
SHOWN_STEPS = 2
"""The number of first steps in the table; the last step follows."""
SMALL = {
    "model": {"tiny": {"layers": 2, "width": 64, "heads": 2, "max_tokens": 128}},
    "warmup": {"steps": 60},
    "data": {"digits": 1},
    "rollout": {"max_new_tokens": 4},
    "learner": {"steps": 40, "groups_per_step": 32, "learning_rate": 5e-4, "device": "cpu"},
}
PART = 8
"""The number of first and of last batches of the short form whose accuracies are compared."""


def main() -> None:
    """Run the quickstart, and print the output for README."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", type=Path, default=PLOT, help="where the plot of the reward goes")
    parser.add_argument("--in-process", action="store_true", help="the short form, without engine and pods")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.in_process:
            in_process(Path(folder))
        else:
            run(Path(folder), arguments.plot)


def run(folder: Path, plot: Path) -> None:
    """Run the whole example with its cold start in a separate folder."""
    settings = [f"runs_dir={folder / 'runs'}", f"warmup.cache_dir={folder / 'warmup'}"]
    command = [sys.executable, "-m", "slipstream.cli", "run", str(EXAMPLE), "--plain"]
    command += [part for setting in settings for part in ("--set", setting)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print("\n".join(shown(done.stdout.splitlines(), folder)) + "\n")
    latest = folder / "runs" / "latest"
    summary = json.loads((latest / "summary.json").read_text(encoding="utf-8"))
    before, after = summary["held_out_accuracy_before"], summary["held_out_accuracy_after"]
    print_ratio("held-out accuracy, after / before", after / before)
    print_ratio("ledger residual", summary["ledger_residual"])
    print_ratio("share of the time that the learner is idle", summary["learner_idle_fraction"])
    shutil.copy(latest / "plots" / "reward.png", plot)


def shown(lines: Sequence[str], folder: Path) -> list[str]:
    """Return the lines without the progress of the cold start, paths, and most steps."""
    steps = [line for line in lines if line.startswith("step ")]
    kept = {*steps[:SHOWN_STEPS], *steps[-1:]}
    shown: list[str] = []
    for line in lines:
        if line.startswith("step "):
            shown += [wrapped(line)] if line in kept else ["..."] if shown[-1] != "..." else []
        elif not line.startswith(("logs ", "cold start: ")) or line.startswith("cold start: done"):
            shown.append(re.sub(r"\d{8}-\d+\S*", "…", line.replace(f"{folder}/", "")))
    return shown


def wrapped(line: str) -> str:
    """Break the line of a step into two, before the columns of the loss."""
    return line.replace("  clip low/high", "\n            clip low/high", 1)


def in_process(folder: Path) -> None:
    """Run the short form."""
    import torch
    from slipstream.config import parse_config
    from slipstream.learner.policy.loading import without_progress_bars
    from slipstream.learner.training.step import TrainingStep

    from benchmarks.aged_training import cold_started, train, warmed_up

    torch.set_num_threads(1)
    without_progress_bars()
    example = laid_over(yaml.safe_load(EXAMPLE.read_text(encoding="utf-8")), SMALL)
    job = laid_over(example, {"warmup": {"cache_dir": str(folder)}})
    config, model = parse_config(job), warmed_up(job)
    depth, last = config.staleness.pipeline_depth, {}
    for age in (depth, 4 * depth):
        policy, sampler = cold_started(model, config)
        batches = train(TrainingStep(policy, config), sampler, config, depth=age, seed=0)["batch_accuracy"]
        first, last[age] = statistics.fmean(batches[:PART]), statistics.fmean(batches[-PART:])
        print(f"{age} versions old: accuracy of the batches {first:.3f} → {last[age]:.3f}")
        if age == depth:
            print_ratio("accuracy of the batches, last / first", last[age] / first)
    print_ratio("accuracy of the last batches, four times as old / as old", last[4 * depth] / last[depth])


if __name__ == "__main__":
    main()
