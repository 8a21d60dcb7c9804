"""One recipe as data, and its description for a terminal."""

import inspect
import math
from dataclasses import dataclass
from typing import Final

from slipstream.algorithms import spec

NO_SHAPING: Final = spec.Shaping()
DISTANCES: Final = {
    "binary_tv": "total variation",
    "binary_kl": "KL",
    "topk_tv": "total variation over the top tokens",
    "topk_kl": "KL over the top tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One recipe. The run sets max_tokens of the aggregation token_sum_norm."""

    advantage: spec.Advantage
    objective: spec.Objective
    aggregation: spec.AggregationName
    corrections: tuple[spec.Correction, ...] = ()
    kl: spec.Kl | None = None
    drift_penalty: spec.DriftPenalty | None = None
    entropy: spec.Entropy | None = None
    top_entropy: spec.TopEntropy | None = None
    clip_cov: spec.ClipCov | None = None
    kl_cov: spec.KlCov | None = None
    distillation: spec.Distillation | None = None
    shaping: spec.Shaping = NO_SHAPING
    group_size: int | None = None
    """Completions per prompt, if the recipe needs this number; None leaves the number to the run."""
    source: str
    """Where the combination comes from."""
    note: str = ""
    """What differs from the source."""


def bound_of(objective: spec.Objective) -> tuple[str, str]:
    """Return name and description of the objective's bound: a band of the ratio, or a trust region."""
    if isinstance(objective, spec.Ipo):
        return "trust region", f"total variation at most {objective.limit:g}"
    if isinstance(objective, spec.Dppo):
        low, high = objective.limits
        unit = " nats" if objective.divergence.endswith("kl") else ""
        cap = "no cap" if objective.cap is None else f"cap {objective.cap:g}"
        most = f"{low:g}{unit}" if low == high else f"{low:g}{unit} down, {high:g}{unit} up"
        distance = DISTANCES[objective.divergence]
        return "trust region", f"{distance} at most {most}, {cap} on the ratio"
    low, high = objective.band
    text = "none" if (low, high) == (0.0, math.inf) else f"[{low:g}, {high:g}]"
    if isinstance(objective, spec.Cispo) and objective.mask != (0.0, math.inf):
        low, high = objective.mask
        text += f", without gradient where A < 0 below {low:g} and where A > 0 above {high:g}"
    return "band of the ratio", text


def describe(preset: Preset) -> str:
    """Return the preset's formulas, band, weights and source, as lines for a terminal."""
    sections = [
        f"advantage {preset.advantage.kind}: {inspect.getdoc(preset.advantage)}",
        f"objective {preset.objective.kind}: {inspect.getdoc(preset.objective)}",
        ": ".join(bound_of(preset.objective)),
        *(f"correction {part.kind}: {inspect.getdoc(part)}" for part in preset.corrections),
        f"aggregation {preset.aggregation}: {spec.AGGREGATIONS[preset.aggregation]}",
        f"source: {preset.source}",
    ]
    return "\n".join([*sections, f"note: {preset.note}"] if preset.note else sections)
