"""Recipes of the papers: named combinations of advantage, objective and aggregation."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from slipstream.algorithms.spec import (
    AGGREGATIONS,
    Advantage,
    AggregationName,
    BatchScaled,
    Cispo,
    DrGrpo,
    Grpo,
    Objective,
    PpoClip,
    Rloo,
    band,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One recipe; token_sum_norm still wants its max_tokens from the run."""

    advantage: Advantage
    objective: Objective
    aggregation: AggregationName
    source: str
    """Where the combination comes from."""


PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        "cispo": Preset(
            advantage=BatchScaled(),
            objective=Cispo(),
            aggregation="token_mean",
            source="MiniMax-M1, arXiv:2506.13585; cap of 5 from ScaleRL, arXiv:2510.13786",
        ),
        "dr_grpo": Preset(
            advantage=DrGrpo(),
            objective=PpoClip(),
            aggregation="token_sum_norm",
            source="Understanding R1-Zero-Like Training, arXiv:2503.20783",
        ),
        "grpo": Preset(
            advantage=Grpo(),
            objective=PpoClip(),
            aggregation="seq_mean_token_mean",
            source="DeepSeekMath, arXiv:2402.03300; ratio taken to the rollout policy",
        ),
        "rloo": Preset(
            advantage=Rloo(),
            objective=PpoClip(),
            aggregation="seq_mean_token_sum",
            source="Back to Basics, arXiv:2402.14740; the paper's own form has objective pg",
        ),
    }
)


def describe(preset: Preset) -> str:
    """Return the preset's formulas, band, weights and source, as lines for a terminal."""
    low, high = band(preset.objective)
    sections = (
        f"advantage {preset.advantage.kind}: {inspect.getdoc(preset.advantage)}",
        f"objective {preset.objective.kind}: {inspect.getdoc(preset.objective)}",
        f"band: [{low:g}, {high:g}]",
        f"aggregation {preset.aggregation}: {AGGREGATIONS[preset.aggregation]}",
        f"source: {preset.source}",
    )
    return "\n".join(sections)
