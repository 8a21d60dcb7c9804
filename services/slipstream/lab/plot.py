"""One picture of a comparison: gate weight against ratio for both signs of the advantage, and cosines."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slipstream.lab.batch import Batch
from slipstream.lab.compare import Trial, cosine

BINS = 40
TICKS = (0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0)
LOWEST, HIGHEST = 0.25, 4.0
"""Ends of the axis of the ratio; the tokens beyond are in the last bins."""


def draw(batch: Batch, trials: Sequence[Trial], path: Path) -> None:
    """Write the picture of the objectives. Errors: OSError; ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [trial for trial in trials if trial.candidate.axis == "objective"]
    figure, axes = pyplot.subplots(1, 3, figsize=(17, 5.5), width_ratios=(1, 1, 1.1))
    colours = [pyplot.get_cmap("tab20")(index % 20) for index in range(len(shown))]
    for axis, sign, name in ((axes[0], 1, "advantage > 0"), (axes[1], -1, "advantage < 0")):
        for trial, colour in zip(shown, colours, strict=True):
            ratios, gates = mean_gates(batch, trial, sign)
            own = trial is shown[0]
            axis.plot(
                ratios,
                gates,
                color="black" if own else colour,
                lw=3 if own else 1.3,
                label=trial.candidate.name,
            )
        axis.set_xscale("log", base=2)
        axis.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axis.set_title(f"gate weight against ratio, {name}")
        axis.set_xlabel("ratio of learner to rollout")
        axis.set_ylim(-0.05, 2.5)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    names = [trial.candidate.name for trial in shown]
    matrix = [[cosine(one.slope_T, other.slope_T) for other in shown] for one in shown]
    image = axes[2].imshow(matrix, vmin=-1, vmax=1, cmap="RdBu")
    axes[2].set_xticks(range(len(names)), names, rotation=90, fontsize=8)
    axes[2].set_yticks(range(len(names)), names, fontsize=8)
    axes[2].set_title("cosine of the slopes")
    figure.colorbar(image, ax=axes[2], shrink=0.8)
    figure.suptitle(f"step {batch.step}: {batch.tokens:,} tokens of {batch.completions:,} completions")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def mean_gates(batch: Batch, trial: Trial, sign: int) -> tuple[np.ndarray, np.ndarray]:
    """Return mean ratio and mean gate of the tokens with this sign of the advantage, by bins of the ratio.

    Tokens over age are left out.
    """
    edges = np.geomspace(LOWEST, HIGHEST, BINS + 1)[1:-1]
    of_sign = (np.sign(batch.advantages_T.numpy()) == sign) & trial.young_T.numpy()
    ratios = batch.ratios_T.numpy()[of_sign].clip(LOWEST, HIGHEST)
    gates = trial.gates_T.numpy()[of_sign]
    bins = np.digitize(ratios, edges)
    counts = np.bincount(bins, minlength=BINS)
    filled = counts > 0
    return (
        np.bincount(bins, ratios, BINS)[filled] / counts[filled],
        np.bincount(bins, gates, BINS)[filled] / counts[filled],
    )
