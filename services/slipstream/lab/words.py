"""A comparison in plain words: one paragraph, with what the losses do to the weights of a checkpoint."""

from collections.abc import Iterator, Sequence

from slipstream.lab.batch import Batch
from slipstream.lab.compare import OWN, Trial
from slipstream.lab.study import Study

MANY = 0.05
"""Share of excluded tokens that is worth a sentence."""
APART = 0.95
"""Cosine below which two losses point in different directions."""
FAR = 0.05
"""Mean distance to the stored logprobs, in nats, above which the checkpoint is another policy."""
TURNED = 0.1
"""Difference between the cosines of gradients and slopes that is worth a sentence."""


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


def about_weights(batch: Batch, trials: Sequence[Trial], study: Study) -> Iterator[str]:
    """Yield what stands out."""
    yield _distance(batch, study)
    yield from _cosines(trials, study)
    yield from _step(trials, study)
    yield from _course(trials, study)
    missing = [t.candidate.name for i, t in enumerate(trials) if i not in study.effects.effects]
    if missing:
        yield f"The time was too short for {', '.join(missing)} (--seconds, --candidates)."


def _distance(batch: Batch, study: Study) -> str:
    ahead = batch.step - 1 - study.version
    where = (
        "is that of the step" if not ahead else f"was made {ahead} step{'' if ahead == 1 else 's'} before it"
    )
    text = (
        f"The checkpoint of version {study.version} {where}: its logprobs are {study.distance.mean:.2g} nats "
        f"from the stored ones on average, {study.distance.largest:.2g} at most"
    )
    if study.distance.mean > FAR:
        return f"{text}, so its gradients are those of another policy."
    return f"{text}."


def _cosines(trials: Sequence[Trial], study: Study) -> Iterator[str]:
    """The objective that points farthest away, and the one whose direction the model changes most."""
    of_weights = {
        index: study.effects.cosine(0, index)
        for index in study.effects.effects
        if index and trials[index].candidate.axis == "objective"
    }
    finite = {index: value for index, value in of_weights.items() if value == value}
    if not finite:
        return
    kind = "" if study.effects.exact else ", by random projections"
    farthest = min(finite, key=lambda index: finite[index])
    yield (
        f"By the weights, {trials[farthest].candidate.name} points farthest away from the loss of this run "
        f"(cosine {finite[farthest]:.2f}{kind})."
    )
    turned = max(finite, key=lambda index: abs(finite[index] - trials[index].cosine))
    if abs(finite[turned] - trials[turned].cosine) > TURNED:
        yield (
            f"The slopes of {trials[turned].candidate.name} say {trials[turned].cosine:.2f} and its gradient "
            f"{finite[turned]:.2f}: the model shares its weights among the tokens."
        )


def _step(trials: Sequence[Trial], study: Study) -> Iterator[str]:
    """What one step does to the logprobs."""
    own = study.effects.effects[0].step
    parts = [
        f"{change.mean:+.2g} nats where the advantage is {sign}"
        for change, sign in ((own.positive, "positive"), (own.negative, "negative"))
        if change is not None
    ]
    if parts:
        yield f"One optimizer step of the loss of this run changes the logprobs by {' and '.join(parts)}."
    largest = max(study.effects.effects, key=lambda index: study.effects.effects[index].step.kl)
    kl = study.effects.effects[largest].step.kl
    if largest and kl > 1.5 * own.kl:
        yield (
            f"{trials[largest].candidate.name} moves the policy most in one step: KL {kl:.2g} nats, "
            f"and the loss of this run {own.kl:.2g}."
        )


def _course(trials: Sequence[Trial], study: Study) -> Iterator[str]:
    """Where the losses are after the next updates."""
    ends = {index: moments[-1] for index, moments in study.courses.courses.items() if len(moments) > 1}
    if 0 not in ends:
        return
    own, updates = ends[0], len(study.courses.steps) - 1
    yield (
        f"From the checkpoint, {updates} update{'' if updates == 1 else 's'} of the loss of this run lead to "
        f"logprobs that are {own.stored:.2g} nats from those of the run."
    )
    least = min(ends, key=lambda index: ends[index].entropy)
    if least and ends[least].entropy < 0.9 * own.entropy:
        yield (
            f"{trials[least].candidate.name} loses most entropy: {ends[least].entropy:.2f} nats are left, "
            f"and with the loss of this run {own.entropy:.2f}."
        )
    most = max(ends, key=lambda index: ends[index].kl)
    if most and ends[most].kl > 1.5 * own.kl:
        yield (
            f"{trials[most].candidate.name} goes farthest from the checkpoint: KL {ends[most].kl:.2g} nats, "
            f"with the loss of this run {own.kl:.2g}."
        )
