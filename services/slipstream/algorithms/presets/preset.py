"""One recipe as data, and its description for a terminal."""

import inspect
import math
from dataclasses import dataclass
from typing import Final

from slipstream.algorithms.spec import (
    AGGREGATIONS,
    Advantage,
    AggregationName,
    Correction,
    DriftPenalty,
    Entropy,
    Kl,
    Objective,
    Shaping,
    TopEntropy,
    band,
)

NO_SHAPING: Final = Shaping()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One recipe; token_sum_norm still wants its max_tokens from the run."""

    advantage: Advantage
    objective: Objective
    aggregation: AggregationName
    corrections: tuple[Correction, ...] = ()
    kl: Kl | None = None
    drift_penalty: DriftPenalty | None = None
    entropy: Entropy | None = None
    top_entropy: TopEntropy | None = None
    shaping: Shaping = NO_SHAPING
    group_size: int | None = None
    """Completions a prompt, where the recipe is nothing without it; None leaves it to the run."""
    source: str
    """Where the combination comes from."""
    note: str = ""
    """What differs from the source."""


def describe(preset: Preset) -> str:
    """Return the preset's formulas, band, weights and source, as lines for a terminal."""
    low, high = band(preset.objective)
    sections = [
        f"advantage {preset.advantage.kind}: {inspect.getdoc(preset.advantage)}",
        f"objective {preset.objective.kind}: {inspect.getdoc(preset.objective)}",
        "band of the ratio: " + (f"[{low:g}, {high:g}]" if high < math.inf else f"[{low:g}, inf] (no bound)"),
        *(f"correction {part.kind}: {inspect.getdoc(part)}" for part in preset.corrections),
        f"aggregation {preset.aggregation}: {AGGREGATIONS[preset.aggregation]}",
        f"source: {preset.source}",
    ]
    return "\n".join([*sections, f"note: {preset.note}"] if preset.note else sections)
