"""One paragraph in plain words about a comparison."""

from collections.abc import Iterator, Sequence

from slipstream.lab.batch import Batch
from slipstream.lab.compare import OWN, Trial
from slipstream.lab.study import Study
from slipstream.lab.weights_words import about_weights

MANY = 0.05
"""Share of excluded tokens that is worth a sentence."""
APART = 0.95
"""Cosine below which two losses point in different directions."""


def paragraph(batch: Batch, trials: Sequence[Trial], study: Study | None = None) -> str:
    """Return what stands out; study: what the losses do to the weights of a checkpoint."""
    of_weights = () if study is None else about_weights(batch, trials, study)
    return " ".join([*_sentences(batch, trials), *of_weights])


def _sentences(batch: Batch, trials: Sequence[Trial]) -> Iterator[str]:
    own = trials[0]
    objectives = [t for t in trials if t.candidate.axis == "objective" and t.candidate.name != OWN]
    stale = batch.staleness_T.double()
    yield (
        f"Step {batch.step} trained on {batch.tokens:,} tokens of {batch.completions:,} completions, "
        f"{stale.mean():.1f} versions old on average and {int(stale.max())} at most; "
        f"{_percent(_outside(batch))} of their ratios are outside of 0.8 to 1.2."
    )
    yield f"The loss of this run excludes {_percent(own.excluded)} of these tokens{_why(own)}."
    strictest = max(objectives, key=lambda trial: trial.excluded, default=None)
    if strictest is not None and strictest.excluded >= MANY and strictest.excluded > own.excluded:
        yield (
            f"Of the objectives, {strictest.candidate.name} excludes most with its defaults: "
            f"{_percent(strictest.excluded)} of the tokens{_why(strictest)}."
        )
    other = min((t for t in objectives if t.cosine == t.cosine), key=lambda trial: trial.cosine, default=None)
    if other is not None and other.cosine < APART:
        name = other.candidate.name
        yield f"{name} points farthest away from the loss of this run (cosine {other.cosine:.2f})."
    else:
        yield "All objectives point almost in the direction of this run's loss: they hardly differ here."
    weakest = min(objectives, key=lambda trial: trial.effective, default=None)
    if weakest is not None and weakest.effective < 0.5:
        yield (
            f"{weakest.candidate.name} learns from few tokens: its weights are worth "
            f"{_percent(weakest.effective)} of the batch (effective sample size)."
        )


def _why(trial: Trial) -> str:
    """Return where the excluded tokens are."""
    parts = [
        (trial.over_age, "over age"),
        (trial.clipped_low, "below its band"),
        (trial.clipped_high, "above its band"),
    ]
    named = [f"{_percent(share)} {where}" for share, where in parts if share >= 0.001]
    return f" ({', '.join(named)})" if named else ""


def _outside(batch: Batch) -> float:
    ratios_T = batch.ratios_T
    return float(((ratios_T < 0.8) | (ratios_T > 1.2)).double().mean())


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if 0 < share < 0.1 else f"{100 * share:.0f} %"
