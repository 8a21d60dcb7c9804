"""Draw panels from the results of their queries, for the docs; one function for each kind of panel."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ask import Series, legend

Answers = Sequence[tuple[Mapping[str, Any], Sequence[Series]]]
"""The queries of a panel, each with its series."""

PALETTE = (
    *("#73BF69", "#F2CC0C", "#5794F2", "#FF9830", "#F2495C", "#B877D9", "#37872D", "#8AB8FF"),
    *("#FFA6B0", "#CA95E5", "#96D98D", "#FFEE52"),
)
COLORS = {"green": "#37872D", "yellow": "#E0B400", "red": "#C4162A", "blue": "#1F60C4"}
INK, PALE = "#24292E", "#D8D9DA"
MOST_NAMES = 8


def draw(axes: Any, panel: Mapping[str, Any], answers: Answers) -> None:
    """Draw one panel into its axes, or «no data»."""
    axes.set_title(panel["title"], loc="left", fontsize=8, color=INK, fontweight="bold", pad=3)
    axes.tick_params(labelsize=6, length=2, color=PALE)
    for side in axes.spines.values():
        side.set_color(PALE)
    if not any(math.isfinite(value) for _, series in answers for one in series for value in one.values):
        _empty(axes)
        return
    KINDS[panel["type"]](axes, panel, answers)


def _lines(axes: Any, panel: Mapping[str, Any], answers: Answers) -> None:
    custom = panel["fieldConfig"]["defaults"]["custom"]
    named = [(legend(target["legendFormat"], one), one) for target, series in answers for one in series]
    named = [(name, one) for name, one in named if any(map(math.isfinite, one.values))]
    if custom.get("stacking", {}).get("mode") == "normal":
        _stack(axes, named, _fixed_colors(panel))
    else:
        fixed = _fixed_colors(panel)
        for free, (name, one) in zip(PALETTE * len(named), named, strict=False):
            color = fixed.get(name, free)
            axes.plot(one.times, one.values, lw=1, color=color, label=name, marker=".", ms=1)
    _bounds(axes, panel, custom)
    columns = min(4, max(1, len(named)))
    axes.legend(
        *_first_names(axes), fontsize=5.5, loc="upper left", frameon=False, ncols=columns, handlelength=1
    )
    axes.grid(color=PALE, lw=0.4)
    axes.yaxis.set_major_formatter(lambda value, _: in_unit(value, panel))


def _first_names(axes: Any) -> tuple[list[Any], list[str]]:
    handles, names = axes.get_legend_handles_labels()
    return handles[:MOST_NAMES], names[:MOST_NAMES]


def _fixed_colors(panel: Mapping[str, Any]) -> dict[str, str]:
    overrides = panel["fieldConfig"]["overrides"]
    fixed = {one["matcher"]["options"]: one["properties"][0]["value"]["fixedColor"] for one in overrides}
    return {name: COLORS.get(color, color) for name, color in fixed.items()}


def _stack(axes: Any, named: Sequence[tuple[str, Series]], fixed: Mapping[str, str]) -> None:
    times = sorted({time for _, one in named for time in one.times})
    rows = []
    for _, one in named:
        values = dict(zip(one.times, one.values, strict=True))
        rows.append([value if math.isfinite(value := values.get(time, 0.0)) else 0.0 for time in times])
    free = (PALETTE * len(named))[: len(named)]
    colors = [fixed.get(name, color) for (name, _), color in zip(named, free, strict=True)]
    axes.stackplot(times, rows, labels=[name for name, _ in named], colors=colors, alpha=0.6, lw=0)


def _bounds(axes: Any, panel: Mapping[str, Any], custom: Mapping[str, Any]) -> None:
    low, high = axes.get_ylim()
    low, high = min(low, custom.get("axisSoftMin", low)), max(high, custom.get("axisSoftMax", high))
    axes.set_ylim(low, high + 0.2 * (high - low))  # space for the legend
    for step in panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", []):
        if step["value"] is not None and step["value"] < axes.get_ylim()[1]:
            axes.axhline(step["value"], color=COLORS[step["color"]], lw=0.8, ls="--")


def _number(axes: Any, panel: Mapping[str, Any], answers: Answers) -> None:
    series = answers[0][1][0]
    value = last_of(series)
    assert value is not None, "a panel without data is drawn as empty"
    defaults = panel["fieldConfig"]["defaults"]
    text, color = in_unit(value, panel), COLORS[color_of(value, panel, answers)]
    for mapping in defaults.get("mappings", []):
        if (option := mapping["options"].get(f"{value:g}")) is not None:
            text, color = option["text"], COLORS[option["color"]]
    axes.plot(series.times, series.values, lw=0.8, color=color, alpha=0.35)
    axes.margins(y=0.6)
    axes.set_yticks([])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=17, color=color)


def color_of(value: float, panel: Mapping[str, Any], answers: Answers) -> str:
    """Return the colour of a number, by the thresholds of the panel or by the query that replaces them."""
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    letters = {one["options"]["configRefId"] for one in panel.get("transformations", [])}
    for limit in (last_of(one) for target, series in answers if target["refId"] in letters for one in series):
        if limit is not None:
            steps = [{"value": None, "color": "green"}, {"value": limit, "color": "red"}]
    reached = [step["color"] for step in steps if step["value"] is None or value >= step["value"]]
    return str(reached[-1])


def last_of(series: Series) -> float | None:
    """Return the last finite value of a series."""
    return next((value for value in reversed(series.values) if math.isfinite(value)), None)


def _heat(axes: Any, panel: Mapping[str, Any], answers: Answers) -> None:
    series = sorted(answers[0][1], key=lambda one: float(one.labels["le"]))
    times = sorted({time for one in series for time in one.times})
    below = [0.0] * len(times)
    rows = []
    for one in series:
        values = dict(zip(one.times, one.values, strict=True))
        up_to = [values.get(time, 0.0) for time in times]
        rows.append([max(0.0, now - before) ** 0.5 for now, before in zip(up_to, below, strict=True)])
        below = up_to
    axes.pcolormesh(times, range(len(rows)), rows, cmap="Blues", shading="nearest", rasterized=True)
    names = [f"≤ {float(one.labels['le']):g}" for one in series]
    every = max(1, len(names) // 10)
    axes.set_yticks(range(0, len(names), every), names[::every])


def _states(axes: Any, panel: Mapping[str, Any], answers: Answers) -> None:
    options = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    target, series = answers[0]
    for row, one in enumerate(series):
        step = one.times[1] - one.times[0] if len(one.times) > 1 else 1.0
        for time, value in zip(one.times, one.values, strict=True):
            axes.broken_barh([(time, step)], (row - 0.35, 0.7), color=options[f"{value:g}"]["color"], lw=0)
    axes.set_yticks([])
    for row, one in enumerate(series):
        axes.text(one.times[0], row + 0.4, legend(target["legendFormat"], one), fontsize=6, va="bottom")
    for option in options.values():
        axes.plot([], [], color=option["color"], lw=5, label=option["text"])
    axes.set_ylim(-0.5, len(series) + 0.4)
    axes.legend(fontsize=6, loc="upper left", frameon=False, ncols=len(options))


def _empty(axes: Any) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(
        0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", fontsize=8, color="grey"
    )


def in_unit(value: float, panel: Mapping[str, Any]) -> str:
    """Return a value as text in the unit of the panel."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    if unit == "percentunit":
        return f"{100 * value:.3g}%"
    if unit == "s":
        return f"{value:.3g} s" if value >= 1 or value == 0 else f"{1000 * value:.3g} ms"
    if unit == "Bps":
        return f"{value / 1e9:.3g} GB/s"
    if unit == "bytes":
        return f"{value / 2**20:.3g} MiB"
    return f"{value:.4g}{unit.removeprefix('suffix:')}" if unit.startswith("suffix:") else f"{value:.4g}"


KINDS: dict[str, Callable[[Any, Mapping[str, Any], Answers], None]] = {
    "timeseries": _lines,
    "stat": _number,
    "heatmap": _heat,
    "state-timeline": _states,
}
