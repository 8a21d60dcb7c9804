"""The curves of the examples with environments: `slipstream run examples/NAME.yaml`, and what was learned.

    python -m benchmarks.examples NAME [--run DIRECTORY] [--plot FILE]

Prints a table of the run, a row for each evaluation, and draws the curves into docs/NAME-curve.png. `--run`
reads a run that has ended instead. Curves of training are means of a step; in the table they are means of the
ten steps nearest to the evaluation.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.cli.launch.history import History, read_history
from slipstream.cli.launch.plots import BLUE, DOTS_PER_INCH, GREEN, ORANGE, SIZE, STYLE, smooth
from slipstream.config.sections.model import TINY_TOKENS

from benchmarks.ratio import print_ratio

ROOT = Path(__file__).resolve().parent.parent
WINDOW = 10
"""Steps of a mean: in the table, and of the strong line of a picture."""
ONE_DIGIT = len("9+9=")
"""Characters of the longest sum of one digit."""
Points = list[tuple[int, float]]
"""Step and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run left."""

    history: History
    samples: Sequence[Mapping[str, Any]]

    def reward(self, name: str) -> Points:
        """Return the mean of a reward over the groups that were sampled since the step before."""
        return [(step, float(row["rewards"][name])) for step, row in sorted(self.history.steps.items())]

    @property
    def held_out(self) -> Points:
        """Mean of the reward `evaluation.reward` over the held-out prompts."""
        rows = sorted(self.history.evaluations.items())
        return [(step, float(row["accuracy"])) for step, row in rows if row.get("accuracy") is not None]


def turns(run: Run) -> Points:
    """Return the mean number of turns of a game."""
    return run.reward("turns")


def solved(run: Run) -> Points:
    """Return the share of solved games."""
    return run.reward("solved")


def contradictions(run: Run) -> Points:
    """Return the mean number of letters in a game that earlier marks exclude."""
    return run.reward("contradictions")


def accuracy(run: Run) -> Points:
    """Return the share of right answers."""
    return run.reward("exact_match")


def readable_calls(run: Run) -> Points:
    """Return the share of the calls that did not fail."""
    made, failed = run.reward("tool_calls"), dict(run.reward("failed_tool_calls"))
    return [(step, 1 - failed[step] / count) for step, count in made if count]


def asked(*, hard: bool) -> Callable[[Run], Points]:
    """Return the share of the sampled agents that began with `?`, at large sums or at sums of two digits."""

    def share(run: Run) -> Points:
        by_step: dict[int, list[float]] = {}
        for sample in run.samples:
            if (len(sample["prompt"]) > ONE_DIGIT) == hard:
                first = TINY_TOKENS[sample["tokens"][0]["id"]]
                by_step.setdefault(sample["step"], []).append(float(first == "?"))
        return [(step, statistics.fmean(values)) for step, values in sorted(by_step.items())]

    return share


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """What is shown of an example."""

    title: str
    held_out: str
    """What its held-out value is."""
    curves: Mapping[str, Callable[[Run], Points]] = field(default_factory=dict)
    """Curves of training, by name."""
    listed: Mapping[str, Callable[[Run], Points]] = field(default_factory=dict)
    """Further curves of training, which the table has and the picture has not."""
    folder: str = "."
    """Folder of the stage, in that of the run."""


EXAMPLES = {
    "guess_number": Example(
        title="Guess a digit: turns of a game",
        held_out="held-out turns",
        curves={"turns": turns},
    ),
    "wordle": Example(
        title="Guess a word: share of solved games",
        held_out="held-out games solved",
        curves={"games solved": solved},
        listed={"excluded letters": contradictions, "turns": turns},
    ),
    "calculator_tool": Example(
        title="Call a calculator: accuracy and calls",
        held_out="held-out accuracy",
        curves={"accuracy": accuracy, "calls that succeed": readable_calls},
        folder="stages/02_tools",
    ),
    "agent_program": Example(
        title="An agent that may ask a calculator",
        held_out="held-out accuracy",
        curves={"asks at large sums": asked(hard=True), "asks at sums of digits": asked(hard=False)},
    ),
}


def read_run(folder: Path) -> Run:
    """Return what a run left in its folder."""
    lines = (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    return Run(history=read_history(folder / "metrics.jsonl"), samples=[json.loads(line) for line in lines])


def near(points: Points, step: int) -> float:
    """Return the mean of the values of the WINDOW steps that are nearest to a step."""
    nearest = sorted(points, key=lambda point: abs(point[0] - step))[:WINDOW]
    return statistics.fmean(value for _, value in nearest)


def table(example: Example, run: Run) -> str:
    """Return a table in Markdown: a row for each evaluation."""
    named = {**example.curves, **example.listed}
    names, curves = ["training step", example.held_out, *named], [curve(run) for curve in named.values()]
    rows = [
        [str(step), f"{value:.2f}", *(f"{near(points, step):.2f}" for points in curves)]
        for step, value in run.held_out
    ]
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(example: Example, run: Run, file: Path) -> None:
    """Draw the held-out values as dots, and the curves of training as lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    curves = {name: curve(run) for name, curve in example.curves.items()}
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=SIZE, layout="constrained")
        axes.plot(*zip(*run.held_out, strict=True), "o--", color=ORANGE, ms=7, label=example.held_out)
        for (name, points), color in zip(curves.items(), (BLUE, GREEN), strict=False):
            steps, values = zip(*points, strict=True)
            axes.plot(steps, values, color=color, alpha=0.25, lw=1)
            axes.plot(steps, smooth(values, WINDOW), color=color, lw=2, label=f"{name}, training")
        axes.set_ylim(bottom=0)
        axes.set_title(example.title)
        axes.set_xlabel("step")
        axes.locator_params(axis="x", integer=True)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, fontsize=10)
        figure.savefig(file, dpi=DOTS_PER_INCH)
        pyplot.close(figure)


def run_example(name: str, folder: Path) -> Path:
    """Run an example in a folder of its own, and return the folder of the run."""
    command = [sys.executable, "-m", "slipstream.cli", "run", f"examples/{name}.yaml", "--plain"]
    command += ["--set", f"runs_dir={folder / 'runs'}"]
    subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=True)
    return folder / "runs" / "latest"


def show(name: str, folder: Path, plot: Path) -> None:
    """Print table and ratios of a run, and draw its picture."""
    example = EXAMPLES[name]
    run = read_run(folder / example.folder)
    print(table(example, run) + "\n")
    seconds = run.history.sessions[-1].loop_seconds
    print(f"{max(run.history.steps)} steps took {seconds:,.0f} s.\n")
    (_, first), *_, (_, last) = run.held_out
    print_ratio(f"{example.held_out}, end / start", last / first)
    for curve_name, curve in {**example.curves, **example.listed}.items():
        points = curve(run)
        print_ratio(f"{curve_name}, last {WINDOW} steps", near(points, points[-1][0]))
    draw(example, run, plot)


def main() -> None:
    """Run an example, or read a run of it, and show it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=EXAMPLES)
    parser.add_argument("--run", type=Path, help="folder of a run that has ended")
    parser.add_argument("--plot", type=Path, help="where the picture goes")
    arguments = parser.parse_args()
    plot = arguments.plot or ROOT / "docs" / f"{arguments.name.replace('_', '-')}-curve.png"
    if arguments.run is not None:
        show(arguments.name, arguments.run, plot)
        return
    with tempfile.TemporaryDirectory() as folder:
        show(arguments.name, run_example(arguments.name, Path(folder)), plot)


if __name__ == "__main__":
    main()
