"""Notes on bands that tokens leave before the policy has changed: by bfloat16 rounding, or by age alone.

Engine and learner round differently. With equal weights the log ratio z = log(learner) - log(engine) of a
token sampled by the engine has E[z] = -KL, which is -E[z^2] / 2 for differences as small as these: the ratio
is below 1 on average, and for long sequences the mean of z tends to that, not to 0.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from slipstream.algorithms import spec
from slipstream.algorithms.spec.correction import Level
from slipstream.config.problem import Problem
from slipstream.config.schema import RunConfig

MISMATCH: Final = 0.0024
"""Mean squared log ratio of a token at equal weights in bfloat16: the least measured with SmolLM2-135M."""
NOTEWORTHY: Final = 0.05
"""Smallest share of tokens that lose their gradient by rounding for which there is a note."""
NARROW_CLIP: Final = 1e-3
"""Largest clip of a sequence's ratio for which one version of training moves the ratio out of the band. The
default clips of GSPO are smaller."""
DECOUPLED: Final = (
    "set the objective's anchor to batch and algorithm.correction to {kind: tis, level: geometric}, as the "
    "preset decoupled_gspo has them, with learner.minibatches above 1"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The ratios of learner to engine at which tokens keep their gradient."""

    name: str
    key: str
    low: float
    high: float
    level: Level | Literal["outlier"]
    """The ratio that the band bounds: of a token, the product over a sequence, the geometric mean over a
    sequence, or the ratio of each token of a sequence (outlier)."""
    remedy: str
    low_drops: tuple[bool, bool] = (True, True)
    """Whether a ratio below the band removes the gradient, for a positive and for a negative advantage."""
    high_drops: tuple[bool, bool] = (True, True)
    """Whether a ratio above the band removes the gradient, for a positive and for a negative advantage."""

    def lost(self, tokens: int) -> tuple[float, float]:
        """Return the shares of tokens without a gradient, for A > 0 and for A < 0, in answers of `tokens`
        tokens."""
        mean, noise = self.log_ratio(tokens)
        below, above = outside(self.low, self.high, mean, noise)
        if self.level == "outlier":  # one token outside the band drops its whole sequence
            lost = 1 - (1 - min(below + above, 1.0)) ** tokens
            return lost, lost
        positive, negative = (
            below * low + above * high for low, high in zip(self.low_drops, self.high_drops, strict=True)
        )
        return positive, negative

    def log_ratio(self, tokens: int) -> tuple[float, float]:
        """Return mean and standard deviation of the log ratio in nats, for independent tokens."""
        added = tokens if self.level == "sequence" else 1
        averaged = tokens if self.level == "geometric" else 1
        return -added * MISMATCH / 2, math.sqrt(added * MISMATCH / averaged)

    def ratio(self, tokens: int) -> str:
        """Describe the ratio that the band bounds."""
        return {
            "token": "the log ratio of a token",
            "outlier": f"the log ratio of each of {tokens} tokens, none of which may leave the band,",
            "sequence": f"the sum of the log ratios of {tokens} tokens",
            "geometric": f"the mean log ratio of {tokens} tokens",
        }[self.level]


def narrow_band(config: RunConfig) -> Iterator[Problem]:
    """Yield notes on bands around the rollout's logprobs that tokens leave by rounding or by age."""
    rounded = config.model.dtype == "bfloat16"
    notes = list(_left_by_rounding(config)) if rounded else []
    yield from notes
    if not any(problem.key == "algorithm.objective" for problem in notes):
        yield from _left_by_age(config)


def outside(low: float, high: float, mean: float, noise: float) -> tuple[float, float]:
    """Return the shares below and above a band of a ratio whose log is normal with this mean and
    deviation."""
    below = 0.0 if low <= 0 else math.erfc((mean - math.log(low)) / (noise * math.sqrt(2))) / 2
    above = 0.0 if math.isinf(high) else math.erfc((math.log(high) - mean) / (noise * math.sqrt(2))) / 2
    return below, above


def _left_by_rounding(config: RunConfig) -> Iterator[Problem]:
    tokens = config.rollout.max_new_tokens
    for part in (*_objective(config), *_corrections(config)):
        positive, negative = part.lost(tokens)
        if (positive + negative) / 2 < NOTEWORTHY:
            continue
        mean, noise = part.log_ratio(tokens)
        lost = f"{100 * positive:.0f} % of the tokens"
        if positive != negative:
            lost += f" with a positive and {100 * negative:.0f} % of those with a negative advantage"
        yield Problem(
            key=part.key,
            reason=f"{part.name} has the band [{part.low:g}, {part.high:g}] for the ratio to the rollout's "
            "logprobs, and in bfloat16 the logprobs of engine and learner differ at equal weights: "
            f"{part.ratio(tokens)} has a mean of {mean:.2g} and a standard deviation of {noise:.2g}, so that "
            f"{lost} have no gradient before the policy has changed",
            remedy=part.remedy,
            severity="note",
        )


def _left_by_age(config: RunConfig) -> Iterator[Problem]:
    objective, oldest = config.algorithm.resolved_objective(), config.staleness.max_staleness
    if not isinstance(objective, spec.Gspo | spec.GspoToken) or objective.anchor != "rollout" or not oldest:
        return
    clips = [clip for clip in (objective.clip_low, objective.clip_high) if clip is not None]
    if not any(clip <= NARROW_CLIP for clip in clips):
        return
    low, high = objective.band
    yield Problem(
        key="algorithm.objective",
        reason=f"{objective.kind} has the band [{low:g}, {high:g}] for the ratio to the rollout's logprobs. "
        "Such a narrow band suits a ratio between the minibatches of one batch, and this run trains on "
        f"tokens that are up to {oldest} versions old: one or two versions move the ratio out of the band, "
        "and about two thirds of the quickstart's tokens had no gradient (docs/benchmarks.md, accuracy "
        "against staleness)",
        remedy=DECOUPLED,
        severity="note",
    )


def _objective(config: RunConfig) -> Iterator[Band]:
    objective = config.algorithm.resolved_objective()
    if objective.anchor != "rollout":
        return
    if isinstance(objective, spec.Cispo) and objective.mask != (0.0, math.inf):
        low, high = objective.mask
        yield Band(
            name="the mask of cispo",
            key="algorithm.objective",
            low=low,
            high=high,
            level="token",
            low_drops=(False, True),
            high_drops=(True, False),
            remedy="set model.dtype to float32, or widen mask_low and mask_high",
        )
    if not objective.drops_outside_band:
        return
    low, high = objective.band
    sequence = isinstance(objective, spec.Gspo | spec.GspoToken)
    by_sign = not isinstance(objective, spec.RolloutIs)
    widen = "set model.dtype to float32, widen the band, or set the anchor to batch with a correction"
    yield Band(
        name=objective.kind,
        key="algorithm.objective",
        low=low,
        high=high,
        level="geometric" if sequence else "token",
        low_drops=(not by_sign, True),
        high_drops=(True, not by_sign),
        remedy=DECOUPLED if sequence else widen,
    )


def _corrections(config: RunConfig) -> Iterator[Band]:
    for part in config.algorithm.resolved_corrections():
        if isinstance(part, spec.Opsm):
            yield Band(
                name=part.kind,
                key="algorithm.correction.delta",
                low=math.exp(-part.delta),
                high=math.inf,
                level="geometric",
                low_drops=(False, True),
                remedy="set model.dtype to float32, or raise delta",
            )
        elif isinstance(part, spec.OutlierTokens):
            yield Band(
                name=part.kind,
                key="algorithm.correction",
                low=part.low or 0.0,
                high=math.inf if part.high is None else part.high,
                level="outlier",
                remedy="set model.dtype to float32, or widen the band: its default is [1e-4, 100]",
            )
        elif isinstance(part, spec.Mis | spec.IcePop | spec.GeometricRejection):
            wider = (
                " (mixtures of experts take [0.99, 1.01])"
                if isinstance(part, spec.GeometricRejection)
                else ""
            )
            yield Band(
                name=part.kind,
                key="algorithm.correction",
                low=part.low or 0.0,
                high=part.high,
                level=_level(part),
                remedy=f"set model.dtype to float32, or widen the band{wider}",
            )


def _level(correction: spec.Mis | spec.IcePop | spec.GeometricRejection) -> Level:
    """Return whether the correction bounds the ratio of a token or of a sequence."""
    if isinstance(correction, spec.Mis):
        return correction.level
    return "token" if isinstance(correction, spec.IcePop) else "geometric"
