"""The program of `slipstream lab`: python -m slipstream.lab.report OPTIONS, a JSON object."""

import contextlib
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from slipstream.config import ConfigError, RunConfig, load_config
from slipstream.lab import changes, curves, gradients, plot
from slipstream.lab.batch import Batch, NotStored, make_batch
from slipstream.lab.compare import Candidate, Trial, candidates, check_functions, chosen, tried
from slipstream.lab.study import NoWeights, Study, choose_checkpoint, study
from slipstream.lab.tables import COLUMNS, tables
from slipstream.lab.words import paragraph
from slipstream.learner.policy.checkpoint_form import CheckpointError
from slipstream.records.json_values import finite
from slipstream.samples.reader import NoSamples, SampleReader

USAGE_ERROR: Final = 2
FAILURES: Final = (NoSamples, NotStored, ConfigError, CheckpointError, ValueError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command."""

    run_dir: str
    step: int | None = None
    output: str | None = None
    json: bool = False
    candidates: Sequence[str] = ()
    objectives: Sequence[str] = ()
    weights: bool | None = None
    """None: if a small enough checkpoint was made before the step."""
    seconds: float = 120.0
    device: Any = "cpu"
    config: Sequence[str] = ()
    """Files of the configuration; none: that of the run directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All that is reported."""

    batch: Batch
    trials: Sequence[Trial]
    refused: Sequence[Candidate]
    study: Study | None
    without_weights: str
    """Why no checkpoint was loaded; empty with a study."""


def main(argv: Sequence[str]) -> int:
    """Compare the losses on a step, and print a table and a paragraph; return the exit status."""
    options = Options(**json.loads(argv[0]))
    run_dir = Path(options.run_dir)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # objectives of the user may print
            made = compare(run_dir, options)
    except FAILURES as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return USAGE_ERROR
    words = paragraph(made.batch, made.trials, made.study)
    if options.json:
        report = as_json(
            *(made.batch, made.trials, made.refused, made.study),
            words=words,
            without_weights=made.without_weights,
        )
        print(json.dumps(report, allow_nan=False))
        return 0
    pictures = list(_draw(made, Path(options.output or run_dir / "plots" / f"lab-{made.batch.step}.png")))
    print("\n\n".join([words, *tables(made.trials, made.refused, made.study)]))
    if made.without_weights:
        print(f"\nwithout weights: {made.without_weights}")
    for picture in pictures:
        print(f"\npicture: {picture}")
    return 0


def compare(run_dir: Path, options: Options) -> Comparison:
    """Try the losses on the batch of a step, and on the weights of a checkpoint. Errors: FAILURES."""
    reader = SampleReader(run_dir)
    batch = read_batch(reader, run_dir, options.step)
    config = load_config([Path(file) for file in options.config] or [run_dir / "config.yaml"], [])
    torch.set_num_threads(config.learner.threads)
    check_functions(options.objectives)
    trials, refused = try_losses(config, batch, options)
    try:
        of_weights, reason = _study(config, run_dir, reader, batch, trials, options), ""
    except FAILURES as error:
        if options.weights:
            raise
        of_weights, reason = None, str(error)
    return Comparison(batch=batch, trials=trials, refused=refused, study=of_weights, without_weights=reason)


def read_batch(reader: SampleReader, run_dir: Path, step: int | None) -> Batch:
    """Return the batch of a step; None: of the last one. Errors: NoSamples, NotStored."""
    stored = [row["step"] for row in reader.steps() if row["trained"]]
    if not stored:
        raise NotStored(f"{run_dir}: no step has stored completions yet")
    chosen_step = stored[-1] if step is None else step
    if chosen_step not in stored:
        raise NotStored(f"{run_dir}: step {chosen_step} is not stored; steps {stored[0]} to {stored[-1]} are")
    return make_batch(chosen_step, reader.tokens_of_step(chosen_step))


def try_losses(config: RunConfig, batch: Batch, options: Options) -> tuple[list[Trial], list[Candidate]]:
    """Return the trials, the run's own loss first, and what cannot be tried. Errors: ValueError."""
    longest = config.rollout.max_new_tokens
    own = config.algorithm.resolved_loss(max_staleness=config.staleness.max_staleness, max_new_tokens=longest)
    available = list(candidates(own, longest=longest, functions=options.objectives))
    return tried(batch, own, chosen(available, options.candidates))


def _study(
    config: RunConfig,
    run_dir: Path,
    reader: SampleReader,
    batch: Batch,
    trials: Sequence[Trial],
    options: Options,
) -> Study:
    """Errors: NoWeights, and those of `study`."""
    if options.weights is False:
        raise NoWeights("--no-weights")
    return study(
        config,
        choose_checkpoint(run_dir, batch.step, requested=options.weights is True),
        reader,
        batch,
        trials,
        selected=bool(options.candidates),
        seconds=options.seconds,
        device=options.device,
    )


def _draw(made: Comparison, picture: Path) -> Sequence[Path]:
    picture.parent.mkdir(parents=True, exist_ok=True)
    plot.draw(made.batch, made.trials, picture)
    if made.study is None:
        return [picture]
    second = picture.with_name(f"{picture.stem}-weights{picture.suffix}")
    plot.draw_study(made.batch, made.trials, made.study, second)
    return [picture, second]


def as_json(
    batch: Batch,
    trials: Sequence[Trial],
    refused: Sequence[Candidate],
    study: Study | None,
    *,
    words: str,
    without_weights: str,
) -> dict[str, Any]:
    """Return a comparison as the object that `slipstream lab --json` prints.

    All lists of trials, and both sides of a matrix, are in the order of `trials`. A number that is not
    finite, or that was not computed, is null.
    without_weights: why no checkpoint was loaded; empty with a study.
    """
    slopes = torch.stack([trial.slope_T for trial in trials])
    report = {
        "step": batch.step,
        "tokens": batch.tokens,
        "completions": batch.completions,
        "words": words,
        "ratio_edges": curves.EDGES.tolist(),
        "quantiles": changes.QUANTILES,
        "trials": [_trial_as_json(batch, trial) for trial in trials],
        "slope_cosines": gradients.cosines(slopes @ slopes.T).tolist(),
        "refused": [{"axis": c.axis, "name": c.name, "reason": c.problem} for c in refused],
        "weights": None if study is None else _study_as_json(trials, study),
        "without_weights": without_weights,
    }
    strict: dict[str, Any] = finite(report)
    return strict


def _trial_as_json(batch: Batch, trial: Trial) -> dict[str, Any]:
    return {
        "axis": trial.candidate.axis,
        "name": trial.candidate.name,
        **{name: getattr(trial, name) for name, _ in COLUMNS},
        "gates": {"positive": _curve(batch, trial, 1), "negative": _curve(batch, trial, -1)},
    }


def _curve(batch: Batch, trial: Trial, sign: Any) -> dict[str, Any]:
    curve = curves.gate_curve(batch, trial, sign)
    return {name: values.tolist() for name, values in asdict(curve).items()}


def _study_as_json(trials: Sequence[Trial], study: Study) -> dict[str, Any]:
    indices, effects = range(len(trials)), study.effects
    return {
        "version": study.version,
        "distance": asdict(study.distance),
        "seconds": study.seconds,
        "exact_cosines": effects.exact,
        "cosines": [[effects.cosine(one, other) for other in indices] for one in indices],
        "effects": [asdict(effects.effects[i]) if i in effects.effects else None for i in indices],
        "course_steps": list(study.courses.steps),
        "courses": [_course(study, index) for index in indices],
    }


def _course(study: Study, index: int) -> dict[str, Any] | None:
    """Return a list of numbers by minibatch for each quantity; None for a loss that was not followed."""
    moments = study.courses.courses.get(index)
    if moments is None:
        problem = study.courses.problems.get(index)
        return None if problem is None else {"problem": problem}
    rows = [asdict(moment) for moment in moments]
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else None


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader of the tables, such as `head`, may end first
    sys.exit(main(sys.argv[1:]))
