"""Pictures of a comparison: gate weights and cosines, and what the losses do to the weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from slipstream.cli.launch.plots import ABOVE_ZERO, BELOW_ZERO
from slipstream.lab.batch import Batch
from slipstream.lab.changes import QUANTILES, Change
from slipstream.lab.compare import OWN, Trial, cosine
from slipstream.lab.curves import gate_curve
from slipstream.lab.study import Study

TICKS: Final = (0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0)
PANELS: Final = (
    ("ratio", "mean ratio to the rollout"),
    ("clipped", "share of clipped tokens"),
    ("excluded", "share of excluded tokens"),
    ("entropy", "entropy, nats"),
    ("raised", "change of logprobs, advantage > 0, nats"),
    ("lowered", "change of logprobs, advantage < 0, nats"),
    ("kl", "KL from the checkpoint, nats"),
    ("norm", "norm of the gradient"),
)


def draw(batch: Batch, trials: Sequence[Trial], path: Path) -> None:
    """Write gate weight against ratio for both signs of the advantage, and the cosines of the objectives.

    Errors: OSError; ImportError without matplotlib.
    """
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
    """Draw a matrix of cosines, in orange where losses agree and in blue where they contradict each other."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("cosines", [BELOW_ZERO, "white", ABOVE_ZERO])
    image = axis.imshow(matrix, vmin=-1, vmax=1, cmap=colours)
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


def draw_study(batch: Batch, trials: Sequence[Trial], study: Study, path: Path) -> None:
    """Write gradients, one optimizer step, and the next updates of the losses.

    Errors: OSError; ImportError without matplotlib.
    """
    pyplot = load_pyplot()
    figure = pyplot.figure(figsize=(20, 15), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.15, 1.4))
    indices = [i for i in study.effects.effects if trials[i].candidate.axis == "objective"]
    names = [trials[i].candidate.name for i in indices]
    of_cosines, of_norms, of_step = top.subplots(1, 3, width_ratios=(1.2, 0.8, 1.2))
    matrix = [[study.effects.cosine(one, other) for other in indices] for one in indices]
    kind = "" if study.effects.exact else " (random projections)"
    draw_cosines(top, of_cosines, names, matrix, f"cosine of the gradients by the weights{kind}")
    effects = [study.effects.effects[i] for i in indices]
    of_norms.barh(names, [effect.norm for effect in effects], color="grey")
    of_norms.set_title("norm of the gradient, before clipping")
    _draw_changes(of_step, names, [effect.step.positive for effect in effects], ABOVE_ZERO, -0.18)
    _draw_changes(of_step, names, [effect.step.negative for effect in effects], BELOW_ZERO, 0.18)
    _name_changes(of_step, names)
    for axis in (of_norms, of_step):
        axis.invert_yaxis()
        axis.grid(alpha=0.3, axis="x")
    panels = bottom.subplots(2, 4).flatten()
    for axis, (quantity, title) in zip(panels, PANELS, strict=True):
        _draw_course(axis, pyplot, trials, study, quantity, title)
    if study.courses.courses:
        panels[0].legend(fontsize=8)
    figure.suptitle(
        f"step {batch.step} on the weights of version {study.version}, whose logprobs are "
        f"{study.distance.mean:.2g} nats from the stored ones on average"
    )
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def _draw_changes(
    axis: Any, names: Sequence[str], changes: Sequence[Change | None], colour: str, offset: float
) -> None:
    """Draw the mean, the quartiles and the 5 % quantiles of the change of logprobs of each loss."""
    low, first, _, third, high = range(len(QUANTILES))
    for place, change in enumerate(changes):
        if change is not None:
            at = place + offset
            quantiles = change.quantiles
            axis.plot([quantiles[low], quantiles[high]], [at, at], color=colour, lw=1)
            axis.plot([quantiles[first], quantiles[third]], [at, at], color=colour, lw=4)
            axis.plot([change.mean], [at], "o", color="black", ms=4)


def _name_changes(axis: Any, names: Sequence[str]) -> None:
    axis.set_yticks(range(len(names)), names)
    axis.axvline(0, color="black", lw=0.8)
    axis.set_title("change of logprobs by one step: advantage > 0 orange, < 0 blue")
    axis.set_xlabel("nats; line 5 % to 95 %, bar 25 % to 75 %, dot mean")


def _draw_course(
    axis: Any, pyplot: Any, trials: Sequence[Trial], study: Study, quantity: str, title: str
) -> None:
    steps = study.courses.steps
    for index, moments in study.courses.courses.items():
        values = [getattr(moment, quantity) for moment in moments]
        axis.plot(range(1, len(values) + 1), values, **style(pyplot, trials[index].candidate.name, index))
    axis.set_title(title)
    axis.set_xticks(range(1, len(steps) + 1), [str(step) for step in steps])
    axis.set_xlabel("minibatch of step")
    axis.grid(alpha=0.3)
