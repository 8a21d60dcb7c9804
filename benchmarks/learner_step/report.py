"""The results of the benchmark learner_step as Markdown tables, and the ratios with bounds."""

import math
from collections.abc import Mapping, Sequence
from statistics import median

from benchmarks.cost import Cost
from benchmarks.learner_step.gradient_cost import OURS, SHARED, TRL_CUT, Speed, times_faster
from benchmarks.learner_step.head_cost import CHUNKED, WHOLE, Shape

BATCH_BYTES = 300
"""Bytes of a token of the batch throughout a step: ids, logprobs, versions, positions, constants."""


def speed_table(speeds: Mapping[str, Speed], tokens: int) -> str:
    """Return a table with a line for each method."""
    names = [OURS, *(name for name in speeds if name != OURS)]
    rows = [
        [
            name,
            f"{tokens / median(speeds[name].seconds):,.0f}",
            f"{times_faster(speeds, OURS, name):.2f}",
            f"{speeds[name].positions / tokens:.2f}",
            "–" if math.isnan(speeds[name].distance) else f"{speeds[name].distance:.0e}",
        ]
        for name in names
    ]
    titles = ["way", "trained tokens/s", "time / Slipstream", "positions / trained token", "off the gradient"]
    return _table(titles, rows)


def speed_ratios(speeds: Mapping[str, Speed], plain: str) -> dict[str, float]:
    """Return the speed relative to TRL, or to the plain implementation without TRL, and the distances."""
    other = TRL_CUT if TRL_CUT in speeds else plain
    return {
        "gradient, trained tokens/s of Slipstream / padded": times_faster(speeds, OURS, other),
        "gradient, largest distance / norm": max(
            speed.distance for speed in speeds.values() if not math.isnan(speed.distance)
        ),
    }


def prompts_ratios(speeds: Mapping[str, Speed]) -> dict[str, float]:
    """Return the speed-up from computing the prompt of a group once."""
    return {
        "short answers, time with share_prompts / without": times_faster(speeds, OURS, SHARED),
        "short answers, distance of the gradients / norm": speeds[SHARED].distance,
    }


def head_table(costs: Mapping[str, Cost], shape: Shape) -> str:
    """Return a table with a line for each variant."""
    full_logits = costs[WHOLE]
    rows = [
        [
            name,
            f"{cost.seconds:.1f}",
            f"{cost.seconds / full_logits.seconds:.2f}",
            f"{cost.peak_bytes / 2**20:,.0f}",
            f"{cost.peak_bytes / full_logits.peak_bytes:.3f}",
        ]
        for name, cost in costs.items()
    ]
    head = f"{shape.tokens:,} tokens, hidden {shape.hidden}, vocabulary {shape.vocabulary:,}."
    return f"{head}\n\n{_table(['variant', 'seconds', 'time', 'peak MiB', 'peak'], rows)}"


def head_ratios(costs: Mapping[str, Cost]) -> dict[str, float]:
    """Return the ratios of memory and time of the chunked variant."""
    full_logits, chunked = costs[WHOLE], costs[CHUNKED]
    return {
        "head, memory in chunks / of all logits": chunked.peak_bytes / full_logits.peak_bytes,
        "head, time in chunks / with all logits": chunked.seconds / full_logits.seconds,
    }


def growth_table(costs: Mapping[int, Cost], full: int) -> str:
    """Return a table with a line for each size of a step."""
    unit = costs[full]
    rows = [
        [
            f"{tokens:,}",
            f"{cost.seconds * 1e6:,.0f}",
            f"{cost.seconds / unit.seconds:.2f}",
            f"{cost.peak_bytes / 2**20:,.0f}",
            f"{cost.peak_bytes / unit.peak_bytes:.2f}",
        ]
        for tokens, cost in costs.items()
    ]
    return _table(["tokens of a step", "µs a token", "time", "peak MiB", "peak"], rows)


def beyond_batch(tokens: int, cost: Cost) -> float:
    """Return the peak memory without that of the batch, which no row size limits."""
    return cost.peak_bytes - BATCH_BYTES * tokens


def growth_ratios(costs: Mapping[int, Cost], full: int) -> dict[str, float]:
    """Return the worst ratios of the steps that are larger than the smallest one with full rows."""
    unit = costs[full]
    larger = {tokens: cost for tokens, cost in costs.items() if tokens > full}
    above = f"above {full:,} tokens / at {full:,}"
    return {
        f"growth, time of a token {above}": max(cost.seconds / unit.seconds for cost in larger.values()),
        f"growth, memory beside the batch {above}": max(
            beyond_batch(tokens, cost) / beyond_batch(full, unit) for tokens, cost in larger.items()
        ),
    }


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [titles, ["---"] * len(titles), *rows])
