"""What needs the model: gradients by the weights, one optimizer step, and the next updates of each loss."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from slipstream.config import RunConfig
from slipstream.lab import changes, compare
from slipstream.lab.batch import Batch, make_batch, trained_rows
from slipstream.lab.course import UPDATES, Courses, StoredStep, courses, stored_step
from slipstream.lab.effects import Effects, effects
from slipstream.lab.sequences import training_sequences
from slipstream.lab.weights import Device, Weights, checkpoint_before, size_of
from slipstream.samples.reader import SampleReader

MOST_AUTOMATIC: Final = 2**30
"""Bytes of the largest checkpoint that is loaded without a request: a model of 90 million parameters."""
FOLLOWED: Final = 5
"""Losses whose next updates are computed if no candidates are named."""


class NoWeights(ValueError):
    """No checkpoint is loaded; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """Distance between the logprobs by the checkpoint and the stored ones, nats."""

    mean: float
    """Of the absolute differences."""
    largest: float
    kl: float
    """Estimate of KL(stored || checkpoint)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What the losses do to the weights of a checkpoint."""

    version: int
    """Policy version of the checkpoint; 0: the model that the run started from."""
    distance: Distance
    effects: Effects
    courses: Courses
    seconds: float
    """Time that it took."""


def choose_checkpoint(run_dir: Path, step: int, *, requested: bool) -> Path | None:
    """Return the checkpoint to load; None: the model that the run started from, only if requested.

    Errors: NoWeights.
    """
    checkpoint = checkpoint_before(run_dir, step)
    if requested:
        return checkpoint
    if checkpoint is None:
        raise NoWeights(
            f"there is no checkpoint from before step {step} (learner.checkpoint); --weights takes the model "
            "that the run started from"
        )
    size = size_of(checkpoint)
    if size > MOST_AUTOMATIC:
        raise NoWeights(f"{checkpoint} has {size / 2**30:.1f} GiB; --weights loads it")
    return checkpoint


def study(
    config: RunConfig,
    checkpoint: Path | None,
    reader: SampleReader,
    batch: Batch,
    trials: Sequence[compare.Trial],
    *,
    selected: bool,
    seconds: float,
    device: Device,
) -> Study:
    """Load the weights, and try each loss on them.

    selected: whether the trials are candidates that were named, so that all of them are followed over the
    next updates; otherwise those of the run and of the objectives that differ most from it are.
    seconds: time after which no further loss is begun. Gradients and steps take two thirds of it at most.
    Errors: CheckpointError; ValueError and OSError for a model that cannot be loaded.
    """
    began = time.monotonic()
    own = trials[0].candidate.loss
    assert own is not None, "the trial of the run has a loss"
    weights = Weights(config, checkpoint, own, device=device)
    sequences = training_sequences(trained_rows(batch.step, reader.tokens_of_step(batch.step)))
    rows = weights.sharding.rows(sequences)
    before_T = weights.logprobs(rows)
    of_trials = effects(weights, batch, rows, trials, before_T=before_T, end=began + seconds * 2 / 3)
    followed = range(len(trials)) if selected else _differing(of_trials, trials)
    return Study(
        version=weights.version,
        distance=_distance(before_T, batch.logprobs_T),
        effects=of_trials,
        courses=courses(
            weights,
            next_steps(reader, weights.version, config),
            {index: trials[index] for index in followed},
            config=config,
            end=began + seconds,
        ),
        seconds=time.monotonic() - began,
    )


def next_steps(reader: SampleReader, version: int, config: RunConfig) -> list[StoredStep]:
    """Return the stored batches after a version that have the next updates.

    The batch of the last step, if it is alone and one minibatch, is cut into as many as there are updates.
    """
    minibatches, steps = config.learner.minibatches, []
    stored = [row["step"] for row in reader.steps() if row["trained"] and row["step"] > version]
    enough = -(-UPDATES // (minibatches * config.learner.epochs))
    if minibatches * config.learner.epochs == 1 and len(stored) == 1:
        minibatches = UPDATES
    for step in stored[:enough]:
        rows = trained_rows(step, reader.tokens_of_step(step))
        steps.append(stored_step(make_batch(step, rows), training_sequences(rows), minibatches))
    return steps


def _differing(of_trials: Effects, trials: Sequence[compare.Trial]) -> list[int]:
    """Return the loss of the run, and the objectives whose gradients point farthest away from its own.

    Of objectives with equal cosines the first one stands for all.
    """
    first: dict[float, int] = {}
    for index in of_trials.effects:
        cosine = round(of_trials.cosine(0, index), 6)
        if index and trials[index].candidate.axis == "objective" and math.isfinite(cosine):
            first.setdefault(cosine, index)
    return [0, *(first[cosine] for cosine in sorted(first)[: FOLLOWED - 1])]


def _distance(checkpoint_T: Tensor, stored_T: Tensor) -> Distance:
    difference_T = (checkpoint_T - stored_T).abs()
    return Distance(
        mean=float(difference_T.mean()),
        largest=float(torch.max(difference_T)),
        kl=changes.mean_kl(checkpoint_T - stored_T),
    )
