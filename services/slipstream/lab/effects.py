"""What each loss does to the weights of a checkpoint: its gradient, and one optimizer step.

    slopes of a loss ─▶ backward passes ─▶ gradient ─▶ clipping, AdamW ─▶ forward passes ─▶ changes

The slopes are those of the stored logprobs, so a loss weighs each token as it would have weighed it in the
step. Suffixes: _T tokens of the batch, _CC any two of the losses.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.lab.batch import Batch
from slipstream.lab.changes import Changes, changes
from slipstream.lab.compare import Trial
from slipstream.lab.gradients import Gradients, cosines
from slipstream.lab.weights import Weights
from slipstream.learner.batches.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one loss does to the weights."""

    norm: float
    """Norm of the gradient before it is clipped."""
    step: Changes
    """By one update on the whole batch, with the moments of the checkpoint and the rate of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What the losses do to the weights."""

    effects: Mapping[int, Effect]
    """By the index of the trial; those for which the time was too short are missing."""
    cosines_CC: Tensor
    """Between the gradients of any two of these trials, in the order of `effects`."""
    exact: bool
    """Whether the cosines are; otherwise they are of random projections, see slipstream.lab.gradients."""

    def cosine(self, one: int, other: int) -> float:
        """Return the cosine between the gradients of two trials; NaN if one of them is missing or 0."""
        if one not in self.effects or other not in self.effects:
            return float("nan")
        order = list(self.effects)
        return float(self.cosines_CC[order.index(one), order.index(other)])


def effects(
    weights: Weights,
    batch: Batch,
    rows: Sequence[Row],
    trials: Sequence[Trial],
    *,
    before_T: Tensor,
    end: float,
) -> Effects:
    """Return what each loss does, until the time `end` of the monotonic clock; the first is always computed.

    rows: those of the batch. before_T: the logprobs [T] by the checkpoint. The weights are restored after it.
    """
    gradients = Gradients(weights.parameters, len(trials))
    made: dict[int, Effect] = {}
    places: list[int] = []
    for index, trial in enumerate(trials):
        same = next((i for i in made if _equal(trials[i], trial)), None)
        if same is not None:
            made[index] = made[same]
            places.append(places[list(made).index(same)])
        elif not made or time.monotonic() < end:
            places.append(max(places, default=-1) + 1)
            made[index] = _effect(weights, batch, rows, trial, gradients, before_T)
    cosines_GG = cosines(gradients.products())
    return Effects(effects=made, cosines_CC=cosines_GG[places][:, places], exact=gradients.exact)


def _effect(
    weights: Weights, batch: Batch, rows: Sequence[Row], trial: Trial, gradients: Gradients, before_T: Tensor
) -> Effect:
    weights.restore()
    weights.update.begin_step(batch.step)
    weights.accumulate(rows, trial.slope_T, trial.entropy_slope_T)
    gradients.add()
    norms = weights.update.clip()
    weights.update.apply(norms)
    after_T = weights.logprobs(rows)
    weights.restore()
    return Effect(norm=norms.policy, step=changes(before_T, after_T, batch.advantages_T))


def _equal(one: Trial, other: Trial) -> bool:
    """Return whether two losses have the same slopes, and so the same gradient."""
    if one.entropy_slope_T is None or other.entropy_slope_T is None:
        return one.entropy_slope_T is other.entropy_slope_T and torch.equal(one.slope_T, other.slope_T)
    return torch.equal(one.slope_T, other.slope_T) and torch.equal(one.entropy_slope_T, other.entropy_slope_T)
