"""One training step: groups in, changed weights out. The whole of learning is in this file.

groups ─▶ advantages ─▶ sequences ─▶ minibatches ─▶ packed rows ─▶ loss, gradient ─▶ optimizer
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from slipstream.algorithms import (
    Counts,
    finalize,
    group_advantages,
    merge,
    over_age_mask,
    policy_loss,
    summarize,
    token_staleness,
)
from slipstream.algorithms.spec import Advantage, LossSpec, Pg
from slipstream.config import RunConfig
from slipstream.learner.batch import (
    Row,
    TrainingSequence,
    group_ids,
    make_row,
    make_sequences,
    pack,
    prompt_tokens,
    total_rewards,
)
from slipstream.learner.model import Policy
from slipstream.learner.schedule import learning_rate
from slipstream.telemetry.metrics import RATIOS
from slipstream.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step did. Of the optimizer steps, `updates` were made and `bad` were skipped.

    `metrics` are those of the loss. Tokens, staleness and ratios are of the tokens that trained: those
    over age are left out.
    """

    loss: float
    gradient_norm: float
    learning_rate: float
    updates: int
    bad: int
    tokens: int
    metrics: Mapping[str, float]
    staleness_mean: float
    staleness_max: int
    staleness_histogram: Mapping[str, int]
    staleness_counts: Mapping[float, int]
    ratio_counts: Mapping[float, int]


class Abandoned(Exception):
    """The step was given up before it changed anything."""


class TrainingStep:
    """Policy and optimizer. `update` is called with weights that nobody reads: the caller holds them."""

    def __init__(self, policy: Policy, config: RunConfig) -> None:
        self.policy = policy
        self.optimizer = torch.optim.AdamW(
            policy.model.parameters(),
            lr=config.learner.learning_rate,
            betas=config.learner.betas,
            weight_decay=config.learner.weight_decay,
        )
        if config.learner.share_prompts and not policy.attends_fully():
            raise ValueError(
                "learner.share_prompts needs full attention in every layer, which this model does not have; "
                "set it to false"
            )
        self._config = config
        self._advantage: Advantage = config.algorithm.resolved_advantage()
        self._loss: LossSpec = config.algorithm.resolved_loss(
            max_staleness=config.staleness.max_staleness, max_new_tokens=config.rollout.max_new_tokens
        )
        self._weights: dict[str, float] = {reward.name: reward.weight for reward in config.rewards}

    def train(
        self,
        groups: Sequence[Group],
        *,
        version: int,
        update: Callable[[Callable[[], None]], None],
        stopped: Callable[[], bool] = lambda: False,
    ) -> StepResult:
        """Train on the groups of one batch; `version` is the policy's before the step.

        `update` runs the change of weights that it is given, while nobody else reads them. A minibatch
        whose loss or gradient is not finite changes nothing (invariant 13). Errors: Abandoned when
        `stopped` becomes true before the first change.
        """
        sequences = make_sequences(groups, self._advantages(groups))
        minibatches = [self._rows(part) for part in _split(sequences, self._config.learner.minibatches)]
        old = [[self._old_logprobs(row) for row in rows] for rows, _ in minibatches]
        record = _Record(rate=self._set_learning_rate(version + 1))
        for (rows, counts), old_rows in zip(minibatches, old, strict=True):
            may_stop = stopped if not record.updates else lambda: False
            loss = self._gradients(rows, old_rows, counts, version, record, may_stop)
            norm = self._clip()
            record.losses.append(loss)
            record.norms.append(norm)
            if torch.isfinite(torch.tensor([loss, norm])).all():
                update(self._apply)
                record.updates += 1
            else:
                record.bad += 1
            self.optimizer.zero_grad(set_to_none=True)
        return record.result()

    def _advantages(self, groups: Sequence[Group]) -> list[float]:
        rewards_B = total_rewards(groups, self._weights)
        advantages: list[float] = group_advantages(self._advantage, rewards_B, group_ids(groups)).tolist()
        return advantages

    def _rows(self, sequences: Sequence[TrainingSequence]) -> tuple[list[Row], Counts]:
        totals = prompt_tokens(sequences)
        learner = self._config.learner
        packed = pack(sequences, max_tokens=learner.max_tokens_per_row, share_prompts=learner.share_prompts)
        rows = [
            make_row(row, totals, self.policy.device, share_prompts=learner.share_prompts) for row in packed
        ]
        counts = Counts(tokens=sum(totals.values()), sequences=len(sequences), prompts=len(totals))
        return rows, counts

    def _old_logprobs(self, row: Row) -> torch.Tensor | None:
        """Logprobs before the first minibatch, where the objective's anchor asks for them."""
        if isinstance(self._loss.objective, Pg) or self._loss.objective.anchor == "rollout":
            return None
        with torch.no_grad():
            return self._logprobs(row)

    def _gradients(
        self,
        rows: Sequence[Row],
        old: Sequence[torch.Tensor | None],
        counts: Counts,
        version: int,
        record: "_Record",
        stopped: Callable[[], bool],
    ) -> float:
        """Accumulate the gradient of one minibatch over rows that share its counts; returns the loss."""
        total = 0.0
        for row, old_T in zip(rows, old, strict=True):
            if stopped():
                self.optimizer.zero_grad(set_to_none=True)
                raise Abandoned
            logprobs_T = self._logprobs(row)
            staleness_T = row_staleness(row, version)
            out = policy_loss(
                self._loss,
                logprobs=logprobs_T,
                rollout_logprobs=row.rollout_logprobs_T,
                old_logprobs=old_T,
                advantages=row.advantages_B,
                mask=torch.ones_like(row.targets_T),
                sequence_ids=row.sequence_ids_T,
                staleness=staleness_T,
                group_ids=row.group_ids_B,
                counts=_counts_of(row, counts),
            )
            out.loss.backward()
            total += float(out.loss.detach())
            trained_T = ~over_age_mask(staleness_T, self._config.staleness.max_staleness)
            ratios_T = (logprobs_T.detach() - row.rollout_logprobs_T).clamp(-20, 20).exp()
            record.add(out.sums, staleness_T[trained_T], ratios_T[trained_T])
        return total

    def _logprobs(self, row: Row) -> torch.Tensor:
        return self.policy.logprobs(
            row.tokens_R,
            row.positions_R,
            row.predictors_T,
            row.targets_T,
            temperature=self._config.rollout.temperature,
            chunk=self._config.learner.logprob_chunk,
            attention_RR=row.attention_RR,
        )

    def _clip(self) -> float:
        parameters = self.policy.model.parameters()
        return float(torch.nn.utils.clip_grad_norm_(parameters, self._config.learner.max_grad_norm))

    def _apply(self) -> None:
        self.optimizer.step()

    def _set_learning_rate(self, step: int) -> float:
        learner = self._config.learner
        rate = learning_rate(step, peak=learner.learning_rate, steps=learner.steps, schedule=learner.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate


def row_staleness(row: Row, version: int) -> torch.Tensor:
    """Age [T] of the row's tokens.

    After a crash the buffer may hold tokens of versions that were lost with the steps that made them; they
    count as fresh. Their ratios are right all the same: rollout logprobs are those of the sampling policy.
    """
    return token_staleness(version, row.versions_T.clamp(max=version))


def _split(sequences: Sequence[TrainingSequence], parts: int) -> list[list[TrainingSequence]]:
    """Minibatches of whole groups, in order; never an empty one unless there is nothing at all."""
    names = sorted({sequence.group for sequence in sequences})
    if not names:
        return [[]]
    part_of = {name: index * parts // len(names) for index, name in enumerate(names)}
    split = [[s for s in sequences if part_of[s.group] == part] for part in range(parts)]
    return [part for part in split if part]


def _counts_of(row: Row, counts: Counts) -> Counts:
    return Counts(
        tokens=counts.tokens,
        sequences=counts.sequences,
        prompts=counts.prompts,
        prompt_tokens_B=row.prompt_tokens_B,
    )


@dataclass(slots=True, kw_only=True)
class _Record:
    """What a step has done so far."""

    rate: float
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    updates: int = 0
    bad: int = 0
    _sums: list[dict[str, torch.Tensor]] = field(default_factory=list)
    _ages: list[torch.Tensor] = field(default_factory=list)
    _ratios: list[torch.Tensor] = field(default_factory=list)

    def add(self, sums: dict[str, torch.Tensor], staleness_T: torch.Tensor, ratios_T: torch.Tensor) -> None:
        """One row: its sums, and the age and ratio of its tokens that trained."""
        self._sums.append(sums)
        self._ages.append(staleness_T.cpu())
        self._ratios.append(ratios_T.cpu())

    def result(self) -> StepResult:
        """The step as values."""
        staleness_T = torch.cat(self._ages) if self._ages else torch.zeros(0, dtype=torch.int64)
        summary = summarize(staleness_T, torch.ones_like(staleness_T))
        ages, amounts = staleness_T.unique(return_counts=True)
        metrics: dict[str, Any] = finalize(merge(self._sums)) if self._sums else {}
        return StepResult(
            loss=sum(self.losses) / len(self.losses),
            gradient_norm=sum(self.norms) / len(self.norms),
            learning_rate=self.rate,
            updates=self.updates,
            bad=self.bad,
            tokens=summary.tokens,
            metrics=metrics,
            staleness_mean=summary.mean,
            staleness_max=summary.largest,
            staleness_histogram=summary.histogram,
            staleness_counts=dict(zip(ages.tolist(), amounts.tolist(), strict=True)),
            ratio_counts=_tally(torch.cat(self._ratios)) if self._ratios else {},
        )


def _tally(ratios_T: torch.Tensor) -> dict[float, int]:
    """The mean of each bucket of the ratio histogram, and how many tokens are in it."""
    finite_T = ratios_T[ratios_T.isfinite()].double()
    bucket_T = torch.bucketize(finite_T, torch.tensor(RATIOS, dtype=torch.float64))
    amounts = torch.bincount(bucket_T, minlength=len(RATIOS) + 1)
    totals = torch.bincount(bucket_T, weights=finite_T, minlength=len(RATIOS) + 1)
    pairs = zip(totals.tolist(), amounts.tolist(), strict=True)
    return {total / amount: amount for total, amount in pairs if amount}
