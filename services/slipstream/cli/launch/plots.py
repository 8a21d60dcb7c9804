"""The plots of a run; `python -m slipstream.cli.launch.plots RUN_DIR` draws them again."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from slipstream.cli.launch.history import History, read_history
from slipstream.cli.launch.summary import staleness_counts, staleness_mean

Draw = Callable[[Any], None]
"""Draws into the axes of matplotlib."""
BLUE, ORANGE, GREEN = "#2563eb", "#ea580c", "#059669"
"""The colours of all pictures, and of the tokens in the console (console/static/colours.js)."""
BELOW_ZERO, ABOVE_ZERO = BLUE, ORANGE
"""Where a colour says which sign a number has."""
SIZE = (8.0, 4.5)
DOTS_PER_INCH = 120
SMOOTH_SHARE = 20
STYLE = {
    "font.size": 11,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e7eb",
    "legend.frameon": False,
}


def draw_all(history: History, folder: Path, *, form: str = "png") -> list[Path]:
    """Draw every standard plot of a run into `folder`, and return their paths."""
    figures = {name: partial(draw, history) for name, draw in PLOTS.items()}
    return draw_figures(figures, folder, form=form)


def draw_figures(figures: Mapping[str, Draw], folder: Path, *, form: str = "png") -> list[Path]:
    """Draw figures into files of `folder`, and return their paths. `form`: png or svg."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with pyplot.rc_context(STYLE):
        for name, draw in figures.items():
            figure, axes = pyplot.subplots(figsize=SIZE, layout="constrained")
            draw(axes)
            paths.append(folder / f"{name}.{form}")
            figure.savefig(paths[-1], dpi=DOTS_PER_INCH)
            pyplot.close(figure)
    return paths


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Return the centred moving mean; near the ends the window is cut off."""
    half = window // 2
    parts = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def _reward(history: History, axes: Any) -> None:
    draw_line(axes, history.column("reward_mean"), color=BLUE, label="training reward")
    points = history.accuracies
    if points:
        axes.plot(*zip(*points, strict=True), "o--", color=ORANGE, lw=1.5, ms=7, label="held-out accuracy")
    for (step, accuracy), drop in zip(points[:1] + points[1:][-1:], (-18, 9), strict=False):
        offset = {"xytext": (0, drop), "textcoords": "offset points", "ha": "center"}
        axes.annotate(f"{accuracy:.2f}", (step, accuracy), color=ORANGE, **offset)
    axes.margins(x=0.04, y=0.12)
    _label(axes, "Reward and held-out accuracy", x="step", y="mean reward, accuracy")


def _staleness(history: History, axes: Any) -> None:
    counts = staleness_counts(history)
    while counts and not counts[last := next(reversed(counts))]:
        del counts[last]
    total = sum(counts.values()) or 1
    bars = axes.bar(list(counts), [100 * n / total for n in counts.values()], width=0.8, color=BLUE)
    axes.bar_label(bars, fmt=_percent, padding=4, fontsize=10)
    axes.grid(visible=False, axis="x")
    axes.margins(y=0.1)
    mean = staleness_mean(history)
    oldest = max((age for _, age in history.column("staleness_max")), default=0)
    title = f"Staleness of trained tokens: mean {mean:.2f}, max {oldest:.0f}"
    _label(axes, title, x="age in policy versions", y="share of tokens (%)", numeric=False)


def _clip_fractions(history: History, axes: Any) -> None:
    for key, color, label in (
        ("clip_fraction_low", GREEN, "clipped low"),
        ("clip_fraction_high", ORANGE, "clipped high"),
    ):
        percent = [(step, 100 * value) for step, value in history.column(key)]
        draw_line(axes, percent, color=color, label=label)
    axes.set_ylim(bottom=0)
    _label(axes, "Clip fractions", x="step", y="share of trained tokens (%)")


def _throughput(history: History, axes: Any) -> None:
    draw_line(axes, history.column("tokens_per_second"), color=BLUE, label="tokens per second")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    right = axes.twinx()
    idle = [(step, 100 * value) for step, value in history.column("idle_fraction")]
    draw_line(right, idle, color=ORANGE, label="learner idle (right)")
    right.set_ylim(0, 100)
    right.set_ylabel("learner idle (%)")
    right.spines["right"].set_visible(True)
    right.grid(visible=False)
    _label(axes, "Throughput", x="step", y="trained tokens per second", others=(right,))


def _percent(share: float) -> str:
    return f"{share:.1f}%" if share >= 0.05 else "<0.1%"


def draw_line(
    axes: Any, points: Sequence[tuple[int, float]], *, color: str, label: str, style: str = "-"
) -> None:
    """Draw the values as a pale line, and their moving mean as a strong line."""
    steps, values = [step for step, _ in points], [value for _, value in points]
    window = len(values) // SMOOTH_SHARE
    marker = "o" if len(values) == 1 else None
    if window > 1:
        axes.plot(steps, values, color=color, alpha=0.25, lw=1)
    axes.plot(steps, smooth(values, max(window, 1)), color=color, lw=2, ls=style, label=label, marker=marker)


def name_axes(axes: Any, title: str, *, x: str, y: str, numeric: bool = True) -> None:
    """Set title, axis labels, and ticks at integers."""
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if numeric:
        axes.locator_params(axis="x", integer=True, min_n_ticks=1)


def _label(
    axes: Any, title: str, *, x: str, y: str, others: Sequence[Any] = (), numeric: bool = True
) -> None:
    """Name the axes, and draw one legend for all of them beside the title."""
    name_axes(axes, title, x=x, y=y, numeric=numeric)
    pairs = [each.get_legend_handles_labels() for each in (axes, *others)]
    handles = [handle for handles, _ in pairs for handle in handles]
    labels = [label for _, labels in pairs for label in labels]
    if handles:
        axes.legend(
            handles, labels, loc="lower right", bbox_to_anchor=(1, 1.0), ncols=len(handles), fontsize=10
        )


PLOTS: dict[str, Callable[[History, Any], None]] = {
    "reward": _reward,
    "staleness": _staleness,
    "clip_fractions": _clip_fractions,
    "throughput": _throughput,
}


def main(run_dir: str) -> int:
    """Draw the plots of a run directory, and return the exit status."""
    history = read_history(Path(run_dir) / "metrics.jsonl")
    try:
        paths = draw_all(history, Path(run_dir) / "plots")
    except ImportError as error:
        print(
            f"plots need matplotlib ({error}): pip install '.[console]' in a clone of Slipstream",
            file=sys.stderr,
        )
        return 1
    print("\n".join(map(str, paths)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
