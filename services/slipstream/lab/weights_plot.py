"""The picture of what the losses do to the weights: gradients, one optimizer step, and the next updates."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from slipstream.lab.batch import Batch
from slipstream.lab.changes import QUANTILES, Change
from slipstream.lab.compare import Trial
from slipstream.lab.plot import draw_cosines, load_pyplot, style
from slipstream.lab.study import Study

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


def draw_study(batch: Batch, trials: Sequence[Trial], study: Study, path: Path) -> None:
    """Write the picture. Errors: OSError; ImportError without matplotlib."""
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
    _draw_changes(of_step, names, [effect.step.positive for effect in effects], "tab:blue", -0.18)
    _draw_changes(of_step, names, [effect.step.negative for effect in effects], "tab:red", 0.18)
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
    axis.set_title("change of logprobs by one step: advantage > 0 blue, < 0 red")
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
