"""The course of the next updates: each loss trains on the batches that followed the checkpoint.

    checkpoint ─▶ minibatch 1 ─▶ update ─▶ minibatch 2 ─▶ update ─▶ …

The learner's own code computes losses, gradients and updates, with the stored advantages. The numbers of a
minibatch are of the pass that computes its gradient, so they show the effect of the updates before it.
Suffixes: _T tokens, _N tokens of a minibatch.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from slipstream.algorithms import Tally, spec
from slipstream.config import RunConfig
from slipstream.lab import changes, compare
from slipstream.lab.batch import Batch
from slipstream.lab.sequences import count
from slipstream.lab.weights import Weights
from slipstream.learner.batches.batch import TrainingSequence, split
from slipstream.learner.batches.rows import Row
from slipstream.learner.training import covariance_tokens, gradients, row_constants, token_trace
from slipstream.learner.training.minibatch import Minibatch, WeightedMinibatch, with_advantages
from slipstream.learner.training.model_flops import model_flops
from slipstream.learner.training.record import Record
from slipstream.samples.token_values import TokenValues

UPDATES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStep:
    """A stored batch, cut into the minibatches of its step, in order."""

    batch: Batch
    minibatches: Sequence[Sequence[TrainingSequence]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a loss makes of one minibatch. Shares are of its tokens."""

    step: int
    tokens: int
    ratio: float
    """Mean ratio of the policy to the rollout."""
    clipped: float
    excluded: float
    """Tokens without a gradient, those over age included."""
    entropy: float
    """Mean, nats."""
    raised: float
    """Mean change of the logprobs since the checkpoint, where the advantage is positive; NaN without."""
    lowered: float
    """The same where the advantage is negative."""
    kl: float
    """Estimate of KL(checkpoint || policy), nats."""
    norm: float
    """Norm of the gradient before it is clipped."""
    stored: float
    """Mean distance to the logprobs of the run, nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Courses:
    """The courses of some losses over the same minibatches."""

    steps: Sequence[int]
    """Of each minibatch."""
    courses: Mapping[int, Sequence[Moment]]
    """By the index of the trial."""
    problems: Mapping[int, str]
    """Why a loss has none."""


def stored_step(batch: Batch, sequences: Sequence[TrainingSequence], minibatches: int) -> StoredStep:
    """Cut a batch into minibatches of whole groups, as the learner does."""
    return StoredStep(batch=batch, minibatches=split(sequences, minibatches))


def courses(
    weights: Weights,
    steps: Sequence[StoredStep],
    trials: Mapping[int, compare.Trial],
    *,
    config: RunConfig,
    end: float,
) -> Courses:
    """Return the course of each trial, until the time `end` of the monotonic clock.

    The weights are restored after it.
    """
    weights.restore()
    base = {
        (step.batch.step, part): weights.logprobs(weights.sharding.rows(sequences))
        for step in steps
        for part, sequences in enumerate(step.minibatches)
    }
    made: dict[int, Sequence[Moment]] = {}
    problems: dict[int, str] = {}
    for index, trial in trials.items():
        if time.monotonic() >= end:
            problems[index] = "the time was too short"
            continue
        loss = trial.candidate.loss
        assert loss is not None, "a trial has a loss"
        course = _Course(weights, config, loss, base)
        try:
            made[index] = list(course.moments(steps))
        except ValueError as error:
            problems[index] = str(error)
        weights.restore()
    longest = max(made.values(), key=len, default=())
    return Courses(steps=[moment.step for moment in longest], courses=made, problems=problems)


class _Course:
    """The updates of one loss, from the checkpoint on."""

    def __init__(
        self, weights: Weights, config: RunConfig, loss: spec.LossSpec, base: Mapping[tuple[int, int], Tensor]
    ) -> None:
        self._weights = weights
        self._loss = loss
        self._base = base
        self._epochs = config.learner.epochs
        self._gradients = gradients.Gradients(
            loss=loss, models=weights.models, max_staleness=config.staleness.max_staleness
        )

    def moments(self, steps: Sequence[StoredStep]) -> Iterator[Moment]:
        """Train, and yield the numbers of UPDATES minibatches at most."""
        left = UPDATES
        for step in steps:
            for moment in self._of_step(step):
                yield moment
                left -= 1
                if not left:
                    return

    def _of_step(self, step: StoredStep) -> Iterator[Moment]:
        batch, update = step.batch, self._weights.update
        record = Record(
            rate=update.begin_step(batch.step),
            tally=Tally(self._weights.policy.device),
            flops=model_flops(self._weights.policy),
            too_long=0,
        )
        minibatches = [self._minibatch(batch, sequences) for sequences in step.minibatches]
        for part, minibatch in list(enumerate(minibatches)) * self._epochs:
            trace = token_trace.TokenTrace()
            losses = self._gradients.accumulate(
                minibatch,
                record,
                version=batch.step - 1,
                entropy_coefficient=self._weights.entropy_coefficient,
                stopped=lambda: False,
                trace=trace,
            )
            norms = update.clip()
            if losses.trains and math.isfinite(losses.policy) and math.isfinite(norms.policy):
                update.apply(norms)
                record.updates += 1
            update.forget_gradients()
            values = trace.gathered(self._weights.models.ranks)
            yield _moment(batch, values, self._base[batch.step, part], norm=norms.policy)

    def _minibatch(self, batch: Batch, sequences: Sequence[TrainingSequence]) -> WeightedMinibatch:
        rows = self._weights.sharding.rows(sequences)
        constants = row_constants.precompute_row_constants(self._loss, rows, self._weights.models)
        reference_T = batch.reference_logprobs_T
        if reference_T is not None:
            constants = [
                replace(each, ref_T=_of_row(reference_T, row))
                for each, row in zip(constants, rows, strict=True)
            ]
        minibatch = with_advantages(
            Minibatch(rows=rows, counts=count(sequences), constants=constants),
            [_advantages(batch, row) for row in rows],
        )
        return covariance_tokens.choose(
            self._loss, minibatch, self._weights.models.ranks, seed=batch.step - 1
        )


def _of_row(values_T: Tensor, row: Row) -> Tensor:
    """Return the values of the tokens of a row."""
    return values_T[row.order_T.cpu()].to(row.rollout_logprobs_T)


def _advantages(batch: Batch, row: Row) -> Tensor:
    """Return the advantages of a row: [B] where no sequence of the batch has several, else [T]."""
    advantages_T = _of_row(batch.advantages_T, row)
    if batch.advantages_B is None:
        return advantages_T
    first_B = torch.searchsorted(
        row.sequence_ids_T, torch.arange(len(row.places_B), device=advantages_T.device)
    )
    return advantages_T[first_B]


def _moment(batch: Batch, values: TokenValues, base_T: Tensor, *, norm: float) -> Moment:
    order_N = torch.from_numpy(values.order_N).long()
    logprobs_N = torch.from_numpy(values.logprobs_N).double()
    advantages_N = batch.advantages_T[order_N]
    change_N = logprobs_N - base_T[order_N]
    gates_N, sides_N = torch.from_numpy(values.gates_N), torch.from_numpy(values.sides_N)
    ratio_N = (logprobs_N - batch.rollout_logprobs_T[order_N]).clamp(-20, 20).exp()
    return Moment(
        step=batch.step,
        tokens=len(order_N),
        ratio=_mean(ratio_N),
        clipped=_mean(sides_N != 0),
        excluded=_mean(gates_N == 0),
        entropy=_mean(torch.from_numpy(values.entropies_N)),
        raised=_mean(change_N[advantages_N > 0]),
        lowered=_mean(change_N[advantages_N < 0]),
        kl=changes.mean_kl(change_N),
        norm=norm,
        stored=_mean((logprobs_N - batch.logprobs_T[order_N]).abs()),
    )


def _mean(values_N: Tensor) -> float:
    return float(values_N.double().mean())
