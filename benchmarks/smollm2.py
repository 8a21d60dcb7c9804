"""The example with a pretrained model: `make example-smollm2`, and the table of docs/getting-started.md.

    python -m benchmarks.smollm2 [--plot FILE]

Makes the model and the questions where they are not there yet, trains for the steps of the example, and
evaluates the model before and after by transformers' own generation, without a part of Slipstream. Takes a
quarter of an hour on two cores.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from slipstream.config import RunConfig, load_config

from benchmarks.ratio import print_ratio

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "counting_smollm2.yaml"
EVALUATE = ROOT / "examples" / "smollm2" / "evaluate.py"
MADE = ROOT / "build" / "smollm2"
PLOT = ROOT / "docs" / "smollm2-reward.png"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One sampled answer to each held-out question."""

    accuracy: float
    commonest: float
    """Share of the commonest answer. A constant answer has 1 here, and is right at most twice."""
    questions: int

    @classmethod
    def read(cls, printed: str) -> Self:
        """Read what evaluate.py printed. Errors: ValueError for a text without its numbers."""
        sampled = re.search(
            r"^sampled +accuracy ([\d.]+), commonest answer .* ([\d.]+)$", printed, re.MULTILINE
        )
        questions = re.search(r"^commonest right answer .*, (\d+) questions$", printed, re.MULTILINE)
        if sampled is None or questions is None:
            raise ValueError(f"{EVALUATE.name}: printed no accuracy of sampled answers:\n{printed}")
        return cls(accuracy=float(sampled[1]), commonest=float(sampled[2]), questions=int(questions[1]))


def main() -> None:
    """Run it, and print the table of the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", type=Path, default=PLOT, help="where the plot of the reward goes")
    arguments = parser.parse_args()
    subprocess.run(
        ["make", *(str((MADE / name).relative_to(ROOT)) for name in ("model/config.json", "training.jsonl"))],
        cwd=ROOT,
        stdout=sys.stderr,
        check=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "slipstream.cli", "run", str(EXAMPLE), "--plain"]
        command += ["--set", f"runs_dir={folder}"]
        subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=True)
        latest = Path(folder) / "latest"
        before, after = evaluated(MADE / "model"), evaluated(latest / "model")
        summary = json.loads((latest / "summary.json").read_text(encoding="utf-8"))
        print_table(before, after, summary, config=load_config([EXAMPLE]))
        shutil.copy(latest / "plots" / "reward.png", arguments.plot)


def evaluated(model: Path) -> Evaluation:
    """Evaluate the model of a directory in a process of its own."""
    command = [sys.executable, str(EVALUATE), str(model), str(MADE / "held-out.jsonl")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Evaluation.read(done.stdout)


def print_table(before: Evaluation, after: Evaluation, summary: dict[str, Any], *, config: RunConfig) -> None:
    """Print the evaluations, what the run says of itself, and the ratios."""
    first, last = summary["held_out_accuracy_before"], summary["held_out_accuracy_after"]
    completions = config.learner.groups_per_step * config.rollout.group_size
    print(
        f"| {after.questions} sampled answers, evaluated by transformers | before | after {summary['steps']} "
        "steps |\n|---|---|---|\n"
        f"| accuracy | {before.accuracy:.3f} | {after.accuracy:.3f} |\n"
        f"| share of the commonest answer | {before.commonest:.3f} | {after.commonest:.3f} |\n\n"
        f"The run itself measured {first:.3f} and {last:.3f} on {config.evaluation.prompts} of these "
        f"questions, and took {summary['loop_seconds']:.1f} s for\n"
        f"{summary['steps']} steps of {completions} answers.\n"
    )
    print_ratio("accuracy by transformers, after / before", after.accuracy / before.accuracy)
    print_ratio("accuracy that the run measured, after / before", last / first)
    print_ratio("share of the commonest answer, after", after.commonest)
    print_ratio("ledger residual", summary["ledger_residual"])


if __name__ == "__main__":
    main()
