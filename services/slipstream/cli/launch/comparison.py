"""Plots of any keys of metrics.jsonl, of one run or of several in the same axes."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any

from slipstream.cli.launch.history import History, Row
from slipstream.cli.launch.plots import BLUE, GREEN, ORANGE, Draw, draw_line, name_axes
from slipstream.cli.launch.summary import staleness_counts
from slipstream.records.json_values import finite_number

Points = Sequence[tuple[int, float]]
Runs = Mapping[str, History]
"""Name of a run in the legend → its rows."""
COLORS = (BLUE, ORANGE, GREEN, "#7c3aed", "#db2777", "#0891b2", "#65a30d", "#b45309")
STYLES = ("-", "--", ":", "-.")
STANDARD: Mapping[str, tuple[str, str, tuple[tuple[str, str], ...]]] = {
    "reward": ("Reward", "mean reward", (("reward_mean", ""),)),
    "held_out_accuracy": ("Held-out accuracy", "accuracy", (("accuracy", ""),)),
    "clip_fractions": (
        "Clip fractions",
        "share of trained tokens",
        (("clip_fraction_low", ", low"), ("clip_fraction_high", ", high")),
    ),
    "throughput": ("Throughput", "trained tokens per second", (("tokens_per_second", ""),)),
    "idle": ("Learner idle", "share of the time", (("idle_fraction", ""),)),
}
"""Name of a figure → its title, the label of its axis, and its keys with what the legend says of each."""


def standard_figures(runs: Runs) -> dict[str, Draw]:
    """Return the standard figures for several runs."""
    figures: dict[str, Draw] = {
        name: partial(_draw_keys, runs, title=title, unit=unit, keys=keys)
        for name, (title, unit, keys) in STANDARD.items()
    }
    return {**figures, "staleness": partial(_draw_staleness, runs)}


def figure_of(runs: Runs, key: str) -> Draw:
    """Return the figure of one key, with a line for each run."""
    return partial(_draw_keys, runs, title=_plain(key), unit=_plain(key), keys=((key, ""),))


def points_of(history: History, key: str) -> Points:
    """Return (step, value) of a key of steps, or else of evaluations, in the order of steps.

    A dot leads into a value with names of its own: `rewards.format`, `by_staleness.1.ess`.
    """
    for rows in (history.steps, history.evaluations):
        points = [
            (step, value) for step, row in sorted(rows.items()) if (value := _value(row, key)) is not None
        ]
        if points:
            return points
    return []


def keys_of(history: History) -> list[str]:
    """Return all keys with numbers, those of nested values with dots."""
    newest = (rows[max(rows)] for rows in (history.steps, history.evaluations) if rows)
    return sorted({key for row in newest for key in _keys(row)} - {"step", "event"})


def _draw_keys(runs: Runs, axes: Any, *, title: str, unit: str, keys: Sequence[tuple[str, str]]) -> None:
    for (name, history), color in zip(runs.items(), cycle(COLORS), strict=False):
        for (key, suffix), style in zip(keys, STYLES, strict=False):
            points = points_of(history, key)
            if points:
                draw_line(axes, points, color=color, label=f"{_plain(name)}{suffix}", style=style)
    name_axes(axes, title, x="step", y=unit)
    _add_legend(axes)


def _draw_staleness(runs: Runs, axes: Any) -> None:
    """Draw the share of the tokens of each age, with a bar for each run."""
    counts = {name: staleness_counts(history) for name, history in runs.items()}
    ages = list(dict.fromkeys(age for of_run in counts.values() for age in of_run))
    while ages and not any(of_run.get(ages[-1]) for of_run in counts.values()):
        ages.pop()
    width = 0.8 / max(len(runs), 1)
    for index, ((name, of_run), color) in enumerate(zip(counts.items(), cycle(COLORS), strict=False)):
        total = sum(of_run.values()) or 1
        places = [place - 0.4 + width * (index + 0.5) for place in range(len(ages))]
        shares = [100 * of_run.get(age, 0) / total for age in ages]
        axes.bar(places, shares, width=width, color=color, label=_plain(name))
    axes.set_xticks(range(len(ages)), ages)
    axes.grid(visible=False, axis="x")
    what = {"x": "age in policy versions", "y": "share of trained tokens (%)"}
    name_axes(axes, "Staleness", **what, numeric=False)
    _add_legend(axes)


def _add_legend(axes: Any) -> None:
    """Draw the legend below the axes, where long names of runs have space."""
    if axes.get_legend_handles_labels()[0]:
        axes.figure.legend(loc="outside lower center", ncols=2, fontsize=10)


def _value(row: Row, key: str) -> float | None:
    """Return the number of a key; None if there is none."""
    value: object = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return finite_number(value)


def _keys(row: Row, before: str = "") -> Iterator[str]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{before}{name}.")
        elif isinstance(value, int | float):
            yield f"{before}{name}"


def _plain(text: str) -> str:
    """Return a text that matplotlib does not read as a formula."""
    return text.replace("$", r"\$")
