"""The clip fractions of every objective on a batch of a healthy run, and on one of a run that collapses.

    python -m benchmarks.clip_fractions [--runs HEALTHY COLLAPSING]

Both runs are twenty steps of the quickstart with the preset grpo. The second has ten times the learning rate
and four updates a step. `slipstream lab` computes every objective with its defaults on the batch of the same
step of both.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.ratio import print_ratio

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "addition.yaml"
STEP = 4
"""The step of the batch: the second one whose tokens are two versions old."""
SETTINGS = ("learner.steps=20", "algorithm.preset=grpo", "evaluation.every_steps=20")
COLLAPSING = ("learner.learning_rate=1e-3", "learner.minibatches=4")
COLUMNS = ("clipped_low", "clipped_high", "excluded", "effective")
RUN = "low / high | no gradient | effective"
HEAD = f"| objective | healthy: {RUN} | collapsing: {RUN} |\n|---|---|---|---|---|---|---|"
SLIPSTREAM = (sys.executable, "-m", "slipstream.cli")
Trials = Mapping[str, Mapping[str, float]]


def main() -> None:
    """Run both, or read two runs, and print the table and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", nargs=2, type=Path, help="directories of two such runs")
    arguments = parser.parse_args()
    if arguments.runs:
        return report(*arguments.runs)
    with tempfile.TemporaryDirectory() as folder:
        report(train(Path(folder) / "healthy", ()), train(Path(folder) / "collapsing", COLLAPSING))


def train(folder: Path, settings: Sequence[str]) -> Path:
    """Run the quickstart with some settings, and return the directory of the run."""
    command = [*SLIPSTREAM, "run", str(EXAMPLE), "--plain", "--set", *SETTINGS, *settings]
    subprocess.run([*command, f"runs_dir={folder}"], cwd=ROOT, check=True, stdout=sys.stderr)
    return (folder / "latest").resolve()


def report(healthy: Path, collapsing: Path) -> None:
    """Print what the lab says of both runs."""
    first, second = trials(healthy), trials(collapsing)
    print(HEAD)
    for name in first:
        print(f"| `{name}` | {cells(first[name])} | {cells(second[name])} |")
    print()
    clipped = {
        name: sum(run["ppo_clip"][c] for c in COLUMNS[:2]) for name, run in (("a", first), ("b", second))
    }
    print_ratio("clipped tokens of ppo_clip, collapsing / healthy", clipped["b"] / clipped["a"])
    for name, run in (("healthy", healthy), ("collapsing", collapsing)):
        print_ratio(f"held-out accuracy of the {name} run, after / before", accuracy_ratio(run))


def trials(run: Path) -> Trials:
    """Return what the lab says of each objective, by its kind."""
    command = [*SLIPSTREAM, "lab", str(run), "--step", str(STEP), "--json"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    rows: list[dict[str, Any]] = json.loads(output)["trials"]
    return {row["name"]: row for row in rows if row["axis"] == "objective" and row["name"] != "this run"}


def cells(trial: Mapping[str, float]) -> str:
    """Return the cells of one run, in percent."""
    low, high, excluded, effective = (100 * trial[column] for column in COLUMNS)
    return f"{low:.1f} / {high:.1f} % | {excluded:.1f} % | {effective:.0f} %"


def accuracy_ratio(run: Path) -> float:
    """Return the held-out accuracy of the last evaluation, divided by that of the first."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    accuracies = [row["accuracy"] for row in rows if row["event"] == "evaluation"]
    return float(accuracies[-1] / accuracies[0])


if __name__ == "__main__":
    main()
