"""The rows of staleness_quality.py as Markdown tables."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def report(rows: Sequence[Mapping[str, Any]], objectives: Sequence[str]) -> str:
    """Return a table for each learning rate and amount of training, with the objectives in this order."""
    kinds = sorted({_kind(row) for row in rows})
    return "\n\n".join(_section([row for row in rows if _kind(row) == kind], objectives) for kind in kinds)


def _kind(row: Mapping[str, Any]) -> tuple[float, int, int]:
    return row["learning_rate"], row["steps"], row["groups"]


def _section(rows: Sequence[Mapping[str, Any]], objectives: Sequence[str]) -> str:
    rate, steps, groups = _kind(rows[0])
    seeds, depths = {row["seed"] for row in rows}, sorted({row["depth"] for row in rows})
    names = [name for name in objectives if any(row["objective"] == name for row in rows)]
    head = (
        f"Learning rate {rate:g}, {steps} steps of {groups} groups, {len(seeds)} seeds; "
        f"{rows[0]['before']:.1%} before."
    )
    titles = ["objective", *(f"depth {depth}" for depth in depths), *(f"bounded, {d}" for d in depths)]
    lines = [_line(titles), _line(["---"] * len(titles))]
    for name in names:
        cells = [[row for row in rows if row["objective"] == name and row["depth"] == d] for d in depths]
        accuracies = [_accuracy(cell, seeds=len(seeds)) for cell in cells]
        lines.append(_line([f"`{name}`", *accuracies, *map(_bounded, cells)]))
    return "\n".join([head, "", *lines])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _accuracy(rows: Sequence[Mapping[str, Any]], *, seeds: int) -> str:
    """Return mean and standard deviation over the seeds in percent, and their number if some are missing."""
    if not rows:
        return "–"
    values = [100 * row["after"] for row in rows]
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    count = f" (n = {len(values)})" if len(values) < seeds else ""
    return f"{statistics.fmean(values):.1f}{spread}{count}"


def _bounded(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the share of trained tokens that the objective clips, at either end."""
    if not rows:
        return "–"
    return f"{statistics.fmean(row['clip_fraction_low'] + row['clip_fraction_high'] for row in rows):.1%}"
