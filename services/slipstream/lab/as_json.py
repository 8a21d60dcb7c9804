"""A comparison as one JSON object, which `slipstream lab --json` prints.

All lists of trials, and both sides of a matrix, are in the order of `trials`. A number that is not finite, or
that was not computed, is null.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from slipstream.lab.batch import Batch
from slipstream.lab.changes import QUANTILES
from slipstream.lab.compare import Candidate, Trial
from slipstream.lab.curves import EDGES, gate_curve
from slipstream.lab.gradients import cosines
from slipstream.lab.study import Study
from slipstream.lab.tables import COLUMNS
from slipstream.records.json_values import finite


def as_json(
    batch: Batch,
    trials: Sequence[Trial],
    refused: Sequence[Candidate],
    study: Study | None,
    *,
    words: str,
    without_weights: str,
) -> dict[str, Any]:
    """Return the object. without_weights: why no checkpoint was loaded; empty with a study."""
    slopes = torch.stack([trial.slope_T for trial in trials])
    report = {
        "step": batch.step,
        "tokens": batch.tokens,
        "completions": batch.completions,
        "words": words,
        "ratio_edges": EDGES.tolist(),
        "quantiles": QUANTILES,
        "trials": [_trial(batch, trial) for trial in trials],
        "slope_cosines": cosines(slopes @ slopes.T).tolist(),
        "refused": [{"axis": c.axis, "name": c.name, "reason": c.problem} for c in refused],
        "weights": None if study is None else _study(trials, study),
        "without_weights": without_weights,
    }
    strict: dict[str, Any] = finite(report)
    return strict


def _trial(batch: Batch, trial: Trial) -> dict[str, Any]:
    return {
        "axis": trial.candidate.axis,
        "name": trial.candidate.name,
        **{name: getattr(trial, name) for name, _ in COLUMNS},
        "gates": {"positive": _curve(batch, trial, 1), "negative": _curve(batch, trial, -1)},
    }


def _curve(batch: Batch, trial: Trial, sign: Any) -> dict[str, Any]:
    curve = gate_curve(batch, trial, sign)
    return {name: values.tolist() for name, values in asdict(curve).items()}


def _study(trials: Sequence[Trial], study: Study) -> dict[str, Any]:
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
