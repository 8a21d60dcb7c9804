"""One training step: the groups of a batch in, changed weights out.

    groups ─▶ minibatches of packed rows ─▶ row constants ─▶ advantages ─▶ gradients ─▶ update ─▶ result
              batches/                      row_constants    advantages    gradients    update    record

All up to the advantages is computed once a batch; gradients and update, for each minibatch and epoch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from slipstream import algorithms, records
from slipstream.algorithms import spec
from slipstream.algorithms.baselines import RunningBaselines
from slipstream.config import RunConfig
from slipstream.learner.batches import batch, group_checks, packing, row_sharding
from slipstream.learner.checkpoints.memory import Memory
from slipstream.learner.policy import model, routing
from slipstream.learner.policy.reference import Reference
from slipstream.learner.ranks.ranks import Alone, Ranks
from slipstream.learner.training import (
    advantages,
    covariance_tokens,
    forward,
    gradients,
    models,
    rewards,
    row_constants,
    token_trace,
)
from slipstream.learner.training.critic import Critic
from slipstream.learner.training.minibatch import Minibatch
from slipstream.learner.training.model_flops import model_flops
from slipstream.learner.training.record import Record, StepResult
from slipstream.learner.training.update import Update


class TrainingStep:
    """Policy, optimizer, and the state that passes from step to step.

    Invariant: a loss or gradient that is not finite changes nothing.
    """

    def __init__(
        self,
        policy: model.Policy,
        config: RunConfig,
        *,
        reference: Reference | None = None,
        critic: Critic | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """Errors: ValueError for a model that cannot share prompts, and for `gae` without a critic."""
        if config.learner.share_prompts and not policy.attends_fully():
            raise ValueError(
                "learner.share_prompts needs full attention in every layer, which this model does not have; "
                "set it to false"
            )
        algorithm, budget = config.algorithm, config.rollout.max_new_tokens
        advantage = algorithm.resolved_advantage()
        if isinstance(advantage, spec.Gae) != (critic is not None):
            raise ValueError("the advantage gae, and no other, trains with a critic: pass load_critic(...)")
        distillation = algorithm.resolved_distillation()
        self._learner = config.learner
        self._rollout_top_k = algorithm.resolved_top_logprobs()
        self._weights: dict[str, float] = {reward.name: reward.weight for reward in config.rewards}
        self._shaping = algorithm.resolved_shaping(max_new_tokens=budget)
        self._loss = algorithm.resolved_loss(
            max_staleness=config.staleness.max_staleness, max_new_tokens=budget
        )
        records_routers = isinstance(self._loss.objective, spec.Rspo)
        if records_routers or config.learner.replay_experts:
            policy.routers = policy.routers or routing.Routers(policy.model)
        self.policy, self.reference, self.critic = policy, reference, critic
        self.forward = forward.Forward(
            config.learner,
            temperature=config.rollout.temperature,
            entropy=self._loss.entropy is not None,
            hidden=critic is not None and critic.reads_policy,
            routers=records_routers,
        )
        self._models = models.Models(
            policy=policy,
            reference=reference,
            critic=critic,
            ranks=ranks or Alone(),
            forward=self.forward,
        )
        self._row_sharding = row_sharding.RowSharding(
            config.learner,
            policy.device,
            self._models.ranks,
            top_k=None if distillation is None else distillation.resolved_top_k,
            rollout_top_k=self._rollout_top_k,
        )
        self._energies = isinstance(advantage, spec.OptimalToken) and not self._loss.by_teacher_alone
        self.advantages = advantages.BatchAdvantages(
            config,
            advantage=advantage,
            loss=self._loss,
            shaping=self._shaping,
            models=self._models,
            row_sharding=self._row_sharding,
        )
        self._gradients = gradients.Gradients(
            loss=self._loss, models=self._models, max_staleness=config.staleness.max_staleness
        )
        self._update = Update(config.learner, self._models)
        self.optimizer = self._update.optimizer
        self._flops = model_flops(policy)
        self.memory = Memory.fresh(self._loss.entropy, self._shaping.collapse_alarm)

    def train(
        self,
        groups: Sequence[records.Group],
        *,
        version: int,
        update: Callable[[Callable[[], None]], None] = lambda change: change(),
        stopped: Callable[[], bool] = lambda: False,
        unvaried_share: float | None = None,
    ) -> StepResult:
        """Train on the groups of one batch, learner.epochs times; `version` is the policy's before the step.

        A minibatch changes nothing if its loss or gradient is not finite (invariant 13), or if none of its
        tokens trains. It changes nothing and counts as an update if its gradient is exactly 0, as where all
        advantages are 0: momentum and weight decay alone would move the weights.

        update: runs the change of weights that it is passed. It may read the gradients before, or skip the
            change.
        stopped: polled before each row until the first update.
        unvaried_share: share of the recently generated groups whose rewards are all equal, which dynamic
            sampling may have kept out of the batch; None if unknown.
        Errors: Abandoned when `stopped` becomes true before the first change; RoutingMismatch when experts
        are to be replayed and routed experts are missing or of another model; ValueError for a token that the
        model does not have, and for missing top logprobs that the objective reads.
        """
        group_checks.check_groups(
            groups,
            self.policy,
            replay_experts=self._learner.replay_experts,
            rollout_top_k=self._rollout_top_k,
        )
        sequences, too_long = packing.without_too_long(
            batch.make_sequences(groups, self._shaping), self._learner.max_tokens_per_row
        )
        minibatches = [self._minibatch(part) for part in batch.split(sequences, self._learner.minibatches)]
        weighted, baselines = self.advantages.of_batch(minibatches, groups, self.memory.baselines)
        weighted = [
            covariance_tokens.choose(self._loss, part, self._models.ranks, seed=version) for part in weighted
        ]
        record = Record(
            rate=self._update.begin_step(version + 1),
            tally=algorithms.Tally(self.policy.device),
            flops=self._flops,
            too_long=too_long,
        )
        coefficient = self.memory.active_entropy(self._loss.entropy)
        trace = token_trace.TokenTrace() if self._learner.samples.share else None
        for number, minibatch in enumerate(weighted * self._learner.epochs):
            try:
                losses = self._gradients.accumulate(
                    minibatch,
                    record,
                    version=version,
                    entropy_coefficient=coefficient,
                    stopped=stopped,
                    trace=trace if number < len(weighted) else None,
                )
            except gradients.Abandoned:
                self._update.forget_gradients()
                raise
            norms = self._update.clip()
            record.add_minibatch(losses, norms)
            if not _all_finite(losses.policy, losses.critic, norms.policy, norms.critic or 0.0):
                record.bad += 1
            elif losses.trains:
                update(partial(self._update.apply, norms))
                record.updates += 1
            self._update.forget_gradients()
        result = record.result(self._models.ranks)
        if trace is not None:
            result = replace(result, token_values=trace.gathered(self._models.ranks))
        return self._remember(result, groups, baselines, unvaried_share)

    def _minibatch(self, sequences: Sequence[batch.TrainingSequence]) -> Minibatch:
        """Pack one minibatch, and compute its row constants with the policy as it is before the batch."""
        totals = batch.sampled_tokens(sequences)
        rows = self._row_sharding.rows(sequences)
        return Minibatch(
            rows=rows,
            counts=algorithms.Counts(
                tokens=totals.total, sequences=len(totals.by_completion), prompts=len(totals.by_group)
            ),
            constants=row_constants.precompute_row_constants(
                self._loss, rows, self._models, energies=self._energies
            ),
        )

    def _remember(
        self,
        result: StepResult,
        groups: Sequence[records.Group],
        baselines: RunningBaselines,
        unvaried_share: float | None,
    ) -> StepResult:
        """Add the batch's diversity to the result. After an update, renew the state for later batches."""
        metrics = {
            **result.metrics,
            **rewards.diversity_of(groups, self._weights, self._shaping, unvaried_share),
        }
        entropy = metrics.pop("entropy", math.nan)
        metrics["token_entropy"] = entropy if result.tokens else math.nan
        metrics["entropy_coefficient"] = self.memory.active_entropy(self._loss.entropy)
        if not result.updates:
            return replace(result, metrics=metrics)
        self.memory, alarm = self.memory.after(self._loss.entropy, baselines, metrics)
        return replace(result, metrics=metrics, collapsing=alarm)


def _all_finite(*numbers: float) -> bool:
    """Whether all are finite in float32, the dtype of the weights."""
    return bool(torch.isfinite(torch.tensor(numbers)).all())
