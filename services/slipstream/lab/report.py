"""The program of `slipstream lab`: python -m slipstream.lab.report OPTIONS, a JSON object."""

import json
import math
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from slipstream.config import ConfigError, RunConfig, load_config
from slipstream.lab.batch import Batch, NotStored, make_batch
from slipstream.lab.compare import Candidate, Trial, candidates, tried
from slipstream.lab.plot import draw
from slipstream.lab.words import paragraph
from slipstream.samples.reader import NoSamples, SampleReader

USAGE_ERROR: Final = 2
COLUMNS: Final = (
    ("excluded", "excluded"),
    ("over_age", "over age"),
    ("clipped_low", "clipped low"),
    ("clipped_high", "clipped high"),
    ("effective", "effective"),
    ("norm", "norm"),
    ("cosine", "cosine"),
)


def main(argv: Sequence[str]) -> int:
    """Compare the losses on a step, and print a table and a paragraph; return the exit status."""
    options: dict[str, Any] = json.loads(argv[0])
    run_dir = Path(options["run_dir"])
    try:
        batch = read_batch(run_dir, options["step"])
        config = load_config([run_dir / "config.yaml"], [])
        trials, refused = compare(config, batch)
    except (NoSamples, NotStored, ConfigError, ValueError, OSError) as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return USAGE_ERROR
    if options["json"]:
        print(json.dumps(_report(batch, trials, refused)))
        return 0
    picture = Path(options["output"] or run_dir / "plots" / f"lab-{batch.step}.png")
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw(batch, trials, picture)
    print(paragraph(batch, trials))
    for axis in ("objective", "correction", "aggregation"):
        print(f"\n{_table(axis, [t for t in trials if t.candidate.axis == axis])}")
    for candidate in refused:
        print(f"  {candidate.axis} {candidate.name}: not on this batch: {candidate.problem}")
    print(f"\npicture: {picture}")
    return 0


def read_batch(run_dir: Path, step: int | None) -> Batch:
    """Return the batch of a step; None: of the last one. Errors: NoSamples, NotStored."""
    reader = SampleReader(run_dir)
    stored = [row["step"] for row in reader.steps() if row["trained"]]
    if not stored:
        raise NotStored(f"{run_dir}: no step has stored completions yet")
    chosen = stored[-1] if step is None else step
    if chosen not in stored:
        raise NotStored(f"{run_dir}: step {step} is not stored; steps {stored[0]} to {stored[-1]} are")
    return make_batch(chosen, reader.tokens_of_step(chosen))


def compare(config: RunConfig, batch: Batch) -> tuple[list[Trial], list[Candidate]]:
    """Return the trials, the run's own loss first, and what cannot be tried. Errors: ValueError."""
    longest = config.rollout.max_new_tokens
    own = config.algorithm.resolved_loss(max_staleness=config.staleness.max_staleness, max_new_tokens=longest)
    return tried(batch, own, list(candidates(own, longest=longest)))


def _table(axis: str, trials: Sequence[Trial]) -> str:
    head = f"{axis:<34}" + "".join(f"{title:>14}" for _, title in COLUMNS)
    lines = [
        f"{trial.candidate.name:<34}"
        + "".join(f"{_cell(name, getattr(trial, name)):>14}" for name, _ in COLUMNS)
        for trial in trials
    ]
    return "\n".join([head, *lines])


def _cell(name: str, value: float) -> str:
    return f"{value:.3f}" if name in ("norm", "cosine") else f"{100 * value:.2f} %"


def _report(batch: Batch, trials: Sequence[Trial], refused: Sequence[Candidate]) -> dict[str, Any]:
    def number(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "step": batch.step,
        "tokens": batch.tokens,
        "completions": batch.completions,
        "words": paragraph(batch, trials),
        "trials": [
            {
                "axis": trial.candidate.axis,
                "name": trial.candidate.name,
                **{name: number(getattr(trial, name)) for name, _ in COLUMNS},
            }
            for trial in trials
        ],
        "refused": [{"axis": c.axis, "name": c.name, "reason": c.problem} for c in refused],
    }


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader of the tables, such as `head`, may end first
    sys.exit(main(sys.argv[1:]))
