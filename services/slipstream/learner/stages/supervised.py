"""Supervised training: the negative log-likelihood of answers after their prompts, on packed rows.

Shape suffixes: T target tokens of a row.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TypeVar

import torch

from slipstream.config import ScheduleConfig
from slipstream.learner.batches.batch import TrainingSequence, sampled_tokens
from slipstream.learner.batches.packing import pack
from slipstream.learner.batches.rows import Row, make_row
from slipstream.learner.policy.model import Policy
from slipstream.learner.training.schedule import learning_rate
from slipstream.records import Completion, FinishReason, VersionSpan

MAX_GRAD_NORM = 1.0
WARMUP_SHARE = 0.05

Item = TypeVar("Item")


class Interrupted(Exception):
    """Training was stopped between two optimizer steps."""


class NotFinite(ValueError):
    """The loss or its gradient is not finite; the weights are those before the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A prompt and an answer to learn; only tokens with mask 1 are learned."""

    prompt_token_ids: tuple[int, ...]
    answer: Completion

    def sequence(self, place: int) -> TrainingSequence:
        """Return the pair as a sequence for packing, in a group of its own."""
        return TrainingSequence(
            prompt_token_ids=self.prompt_token_ids, segment=self.answer, place=place, group=place
        )


Progress = Callable[[int, int, float], None]
"""Called after each step with its number from 1, the number of steps, and its loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """Settings of `fit`: optimizer steps, peak learning rate, tokens of a row, share of replaced targets."""

    steps: int
    learning_rate: float
    max_tokens_per_row: int
    label_smoothing: float = 0.0


def fit(
    policy: Policy,
    batches: Iterable[Sequence[Pair]],
    settings: Fitting,
    *,
    report: Progress,
    stopped: Callable[[], bool] = lambda: False,
) -> float:
    """Train on the mean negative log-likelihood of a token, one optimizer step for each batch.

    Labels are smoothed by sampling: a share of the targets is replaced by tokens drawn from the whole
    vocabulary, which in expectation is the loss of Rethinking the Inception Architecture, arXiv:1512.00567.
    Return the last loss. Errors: Interrupted, NotFinite.
    """
    vocabulary = policy.model.config.get_text_config().vocab_size
    smoothing = _Smoothing(share=settings.label_smoothing, vocabulary=vocabulary)

    def loss_of(batch: Sequence[Pair]) -> float:
        rows = _rows(policy, batch, max_tokens=settings.max_tokens_per_row)
        return _backward(policy, ((smoothing.apply(row), count) for row, count in rows))

    return descend(
        policy,
        batches,
        loss_of,
        steps=settings.steps,
        peak=settings.learning_rate,
        report=report,
        stopped=stopped,
    )


def descend(
    policy: Policy,
    batches: Iterable[Item],
    loss_of: Callable[[Item], float],
    *,
    steps: int,
    peak: float,
    report: Progress,
    stopped: Callable[[], bool] = lambda: False,
) -> float:
    """Run AdamW over `steps` batches; `loss_of` adds the gradient of a batch and returns its loss.

    The rate rises over 5 % of the steps and falls along a cosine to a tenth. Return the last loss. Errors:
    Interrupted, NotFinite.
    """
    loss: float = math.nan
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=peak, betas=(0.9, 0.95))
    schedule = ScheduleConfig(kind="cosine", warmup_steps=max(1, int(WARMUP_SHARE * steps)))
    for step, batch in zip(range(1, steps + 1), batches, strict=False):
        if stopped():
            raise Interrupted
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, peak=peak, steps=steps, schedule=schedule)
        loss = loss_of(batch)
        norm = torch.nn.utils.clip_grad_norm_(policy.model.parameters(), MAX_GRAD_NORM)
        if not bool(norm.isfinite()):
            raise NotFinite(f"step {step}: loss {loss:g}, gradient {float(norm):g}; lower learning_rate")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        report(step, steps, loss)
    return loss


def epochs_of(items: Sequence[Item], *, batch_size: int, epochs: int, seed: int) -> Iterator[list[Item]]:
    """Yield batches of the items, shuffled anew in each epoch; the last batch of an epoch may be smaller."""
    for epoch in range(epochs):
        order = list(items)
        Random(f"{seed}/{epoch}").shuffle(order)
        yield from (order[start : start + batch_size] for start in range(0, len(order), batch_size))


def steps_of(items: int, *, batch_size: int, epochs: int) -> int:
    """Return the number of batches of `epochs_of`."""
    return epochs * -(-items // batch_size)


def unsampled_answer(token_ids: tuple[int, ...]) -> Completion:
    """Return an answer that was not sampled, such as a demonstration.

    Its logprobs are 0 and must not be read.
    """
    return Completion(
        token_ids=token_ids,
        logprobs=(0.0,) * len(token_ids),
        mask=(1,) * len(token_ids),
        spans=(VersionSpan(version=0, start=0, end=len(token_ids)),),
        finish_reason=FinishReason.STOP,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Smoothing:
    """Replaces a share of the targets, by random draws that depend on their order only."""

    share: float
    vocabulary: int
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def apply(self, row: Row) -> Row:
        shape = row.targets_T.shape
        replaced_T = torch.rand(shape, generator=self.generator) < self.share
        random_T = torch.randint(self.vocabulary, shape, generator=self.generator)
        device = row.targets_T.device
        return replace(row, targets_T=row.targets_T.where(~replaced_T.to(device), random_T.to(device)))


def _rows(policy: Policy, pairs: Sequence[Pair], *, max_tokens: int) -> Iterator[tuple[Row, int]]:
    """Yield packed rows, each with the number of target tokens of the whole batch."""
    sequences = [pair.sequence(place) for place, pair in enumerate(pairs)]
    totals = sampled_tokens(sequences)
    for packed in pack(sequences, max_tokens=max_tokens):
        yield make_row(packed, totals, policy.device), totals.total


def _backward(policy: Policy, rows: Iterator[tuple[Row, int]]) -> float:
    total = 0.0
    for row, count in rows:
        logprobs_T = policy.selected(
            row.tokens_R, row.positions_R, row.predictors_T, row.targets_T, temperature=1.0
        ).logprobs_T
        loss = -logprobs_T.sum() / count
        loss.backward()
        total += float(loss.detach())
    return total
