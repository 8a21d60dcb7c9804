"""One picture of a comparison: gate weight against ratio for both signs of the advantage, and cosines."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from slipstream.lab.batch import Batch
from slipstream.lab.compare import OWN, Trial, cosine
from slipstream.lab.curves import gate_curve

TICKS: Final = (0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0)


def draw(batch: Batch, trials: Sequence[Trial], path: Path) -> None:
    """Write the picture of the objectives. Errors: OSError; ImportError without matplotlib."""
    shown = [trial for trial in trials if trial.candidate.axis == "objective"]
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(1, 3, figsize=(17, 5.5), width_ratios=(1, 1, 1.1))
    _draw_gates(axes[0], batch, shown, 1, "advantage > 0")
    _draw_gates(axes[1], batch, shown, -1, "advantage < 0")
    axes[0].legend(fontsize=8)
    matrix = [[cosine(one.slope_T, other.slope_T) for other in shown] for one in shown]
    draw_cosines(figure, axes[2], [trial.candidate.name for trial in shown], matrix, "cosine of the slopes")
    figure.suptitle(f"step {batch.step}: {batch.tokens:,} tokens of {batch.completions:,} completions")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def load_pyplot() -> Any:
    """Return matplotlib's pyplot, without a window. Errors: ImportError."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def style(pyplot: Any, name: str, place: int) -> dict[str, Any]:
    """Return the style of the line of a loss: that of the run is thick and black."""
    if name == OWN:
        return {"color": "black", "lw": 3, "label": name}
    return {"color": pyplot.get_cmap("tab20")(place % 20), "lw": 1.3, "label": name}


def draw_cosines(
    figure: Any, axis: Any, names: Sequence[str], matrix: Sequence[Sequence[float]], title: str
) -> None:
    """Draw a matrix of cosines."""
    image = axis.imshow(matrix, vmin=-1, vmax=1, cmap="RdBu")
    axis.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_title(title)
    figure.colorbar(image, ax=axis, shrink=0.8)


def _draw_gates(axis: Any, batch: Batch, shown: Sequence[Trial], sign: Any, name: str) -> None:
    for place, trial in enumerate(shown):
        curve = gate_curve(batch, trial, sign)
        axis.plot(curve.ratios, curve.gates, **style(load_pyplot(), trial.candidate.name, place))
    axis.set_xscale("log", base=2)
    axis.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axis.set_title(f"gate weight against ratio, {name}")
    axis.set_xlabel("ratio of learner to rollout")
    axis.set_ylim(-0.05, 2.5)
    axis.grid(alpha=0.3)
