"""One training step: groups in, changed weights out.

groups ─▶ sequences ─▶ minibatches of packed rows ─▶ old, reference logprobs ─▶ rewards, advantages ─┐
          (batch)      (packing, rows, dealing)      (passes, forward)          (assignment, credit) │
                                                   ┌─ loss, gradient ─▶ optimizer ◀──────────────────┘
                                                   └─▶ the next minibatch, and so on for every epoch
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from slipstream.algorithms import (
    Counts,
    Tally,
    Taught,
    TeacherTop,
    TopK,
    over_age_mask,
    policy_loss,
    token_staleness,
)
from slipstream.algorithms.baselines import RunningBaselines
from slipstream.algorithms.spec import Gae, OptimalToken, Rspo
from slipstream.config import RunConfig
from slipstream.learner.batches.batch import TrainingSequence, make_sequences, prompt_tokens, split
from slipstream.learner.batches.packing import without_too_long
from slipstream.learner.batches.routed_experts import require_experts
from slipstream.learner.batches.row_sharding import RowSharding
from slipstream.learner.batches.rows import Row
from slipstream.learner.batches.top_logprobs import require_top_logprobs
from slipstream.learner.checkpoints.memory import Memory
from slipstream.learner.policy.logprobs import Selected
from slipstream.learner.policy.model import Policy, whole
from slipstream.learner.policy.reference import Reference
from slipstream.learner.policy.routing import Routers, router_shift
from slipstream.learner.ranks.ranks import Alone, Ranks
from slipstream.learner.training.advantages import BatchAdvantages, Minibatch
from slipstream.learner.training.covariance_tokens import choose
from slipstream.learner.training.critic import Critic
from slipstream.learner.training.forward import Forward
from slipstream.learner.training.model_flops import model_flops
from slipstream.learner.training.record import Record, StepResult
from slipstream.learner.training.rewards import diversity_of
from slipstream.learner.training.row_constants import drift_bound, precompute_row_constants
from slipstream.learner.training.schedule import learning_rate
from slipstream.records import Group


class Abandoned(Exception):
    """The step was given up before it changed anything."""


class TrainingStep:
    """Policy, optimizer, and what learning remembers. Invariant: what is not finite changes nothing."""

    def __init__(
        self,
        policy: Policy,
        config: RunConfig,
        *,
        reference: Reference | None = None,
        critic: Critic | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.policy = policy
        self.reference = reference
        self.critic = critic
        self._ranks = ranks or Alone()
        distillation = config.algorithm.resolved_distillation()
        top_k = None if distillation is None else distillation.resolved_top_k
        self._rollout_top_k = config.algorithm.resolved_top_logprobs()
        self._row_sharding = RowSharding(
            config.learner, policy.device, self._ranks, top_k=top_k, rollout_top_k=self._rollout_top_k
        )
        self.optimizer = torch.optim.AdamW(
            [parameter for _, parameter in policy.trained_parameters()],
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
        budget = config.rollout.max_new_tokens
        self._shaping = config.algorithm.resolved_shaping(max_new_tokens=budget)
        self._loss = config.algorithm.resolved_loss(
            max_staleness=config.staleness.max_staleness, max_new_tokens=budget
        )
        records_routers = isinstance(self._loss.objective, Rspo)
        if records_routers or config.learner.replay_experts:
            policy.routers = policy.routers or Routers(policy.model)
        advantage = config.algorithm.resolved_advantage()
        if isinstance(advantage, Gae) != (critic is not None):
            raise ValueError("the advantage gae, and no other, trains with a critic: pass load_critic(...)")
        self._energies = isinstance(advantage, OptimalToken) and not self._loss.by_teacher_alone
        self.forward = Forward(
            config,
            entropy=self._loss.entropy is not None,
            hidden=critic is not None and critic.reads_policy,
            routers=records_routers,
        )
        self.assignment = BatchAdvantages(
            config,
            advantage=advantage,
            loss=self._loss,
            shaping=self._shaping,
            reference=reference,
            row_sharding=self._row_sharding,
            forward=self.forward,
            ranks=self._ranks,
        )
        self._weights: dict[str, float] = {reward.name: reward.weight for reward in config.rewards}
        self._flops = model_flops(policy)
        self.memory = Memory.fresh(self._loss.entropy, self._shaping.collapse_alarm)

    def train(
        self,
        groups: Sequence[Group],
        *,
        version: int,
        update: Callable[[Callable[[], None]], None] = lambda change: change(),
        stopped: Callable[[], bool] = lambda: False,
        unvaried_share: float | None = None,
    ) -> StepResult:
        """Train on the groups of one batch, learner.epochs times; `version` is the policy's before the step.

        `update` runs the change of weights that it is given; one that does not leaves the gradients to look
        at. A minibatch whose loss or gradient is not finite changes nothing (invariant 13), nor does one of
        which no token trains, or whose gradient is exactly 0, as where all advantages are (it counts as an
        update): momentum and weight decay alone would move the weights. `unvaried_share`: of the groups
        generated of late, those whose rewards are all equal, which dynamic sampling may have kept out of the
        batch; None where it is not known. Errors: Abandoned when `stopped` becomes true before the first
        change; RoutingMismatch when experts are to be replayed that did not come, or of another model;
        ValueError for a token that the model does not have, and for top logprobs that the objective reads and
        that did not come.
        """
        if self._config.learner.replay_experts and self.policy.routers is not None:
            layers = self.policy.model.config.get_text_config().num_hidden_layers
            require_experts(groups, self.policy.routers, hidden_layers=layers)
        _check_tokens(groups, self.policy)
        if self._rollout_top_k:
            require_top_logprobs(groups, self._rollout_top_k, vocabulary=_vocabulary(self.policy))
        sequences, too_long = without_too_long(
            make_sequences(groups, self._shaping), self._config.learner.max_tokens_per_row
        )
        minibatches = [self._look(part) for part in split(sequences, self._config.learner.minibatches)]
        minibatches, baselines = self.assignment.of_batch(minibatches, groups, self.memory.baselines)
        minibatches = [choose(self._loss, part, self._ranks, seed=version) for part in minibatches]
        record = Record(
            rate=self._set_learning_rate(version + 1),
            tally=Tally(self.policy.device),
            flops=self._flops,
            too_long=too_long,
        )
        for minibatch in minibatches * self._config.learner.epochs:
            may_stop = stopped if not record.updates else lambda: False
            loss, value_loss, trains = self._gradients(minibatch, version, record, may_stop)
            norm, value_norm = self._clip(), 0.0
            record.losses.append(loss)
            record.norms.append(norm)
            if self.critic is not None:
                value_norm = self.critic.clip()
                record.critic_norms.append(value_norm)
            if not torch.isfinite(torch.tensor([loss, norm, value_loss, value_norm])).all():
                record.bad += 1
            elif trains:
                update(partial(self._apply, policy=norm > 0, critic=value_norm > 0))
                record.updates += 1
            self._forget_gradients()
        return self._remember(record.result(self._ranks), groups, baselines, unvaried_share)

    def _look(self, sequences: Sequence[TrainingSequence]) -> Minibatch:
        """Pack one minibatch, and look at it before the first update of the batch."""
        totals = prompt_tokens(sequences)
        rows = self._row_sharding.rows(sequences)
        counts = Counts(tokens=sum(totals.values()), sequences=len(sequences), prompts=len(totals))
        reference = None if self.reference is None else self.reference.policy
        known = precompute_row_constants(
            self._loss,
            rows,
            self.policy,
            reference,
            self.forward,
            self._ranks,
            critic=self.critic,
            energies=self._energies,
        )
        return Minibatch(rows=rows, counts=counts, known=known)

    def _gradients(
        self, minibatch: Minibatch, version: int, record: Record, stopped: Callable[[], bool]
    ) -> tuple[float, float, bool]:
        """Accumulate the gradient of one minibatch over rows that share its counts; returns the losses of
        policy and critic, and whether any token trains."""
        totals = torch.zeros(3, dtype=torch.float64, device=self.policy.device)
        limit = drift_bound(
            self._loss,
            minibatch.rows,
            minibatch.advantages,
            minibatch.known,
            self.policy,
            self.forward,
            self._ranks,
            updated=record.updates > 0,
        )
        coefficient = self.memory.active_entropy(self._loss.entropy)
        for row, known, advantages_B in zip(
            minibatch.rows, minibatch.known, minibatch.advantages, strict=True
        ):
            if self._ranks.any(stopped()):
                self._forget_gradients()
                raise Abandoned
            now = self.forward(self.policy, row, known.routed, others=True)
            staleness_T = row_staleness(row, version)
            out = policy_loss(
                self._loss,
                logprobs=now.logprobs_T,
                rollout_logprobs=row.rollout_logprobs_T,
                old_logprobs=known.old_T,
                ref_logprobs=known.ref_T,
                advantages=advantages_B,
                layout=row.layout,
                staleness=staleness_T,
                group_ids=row.group_ids_B,
                counts=replace(minibatch.counts, prompt_tokens_B=row.prompt_tokens_B),
                entropy=now.entropy_T,
                entropy_coefficient=coefficient,
                selected=known.selected_T,
                held=known.held_T,
                router_shift=router_shift(known.routed, now.routed) if known.routed and now.routed else None,
                top_k=_top_k(row, now),
                taught=_taught(row, now),
                m2po_limit=limit,
                tally=record.tally,
            )
            over_age_T = over_age_mask(staleness_T, self._config.staleness.max_staleness)
            trained_T = row.layout.mask_T & ~over_age_T
            loss, value, sums = out.loss, torch.zeros_like(out.loss), {}
            if self.critic is not None:
                found = self.critic.loss(
                    row,
                    now.hidden_NH,
                    old=known.values,
                    returns_T=known.returns_T,
                    trains_T=trained_T,
                    counts=minibatch.counts,
                )
                value, sums = found.loss, found.sums
                loss = value if self.critic.warming else loss + value
            loss.backward()
            totals += torch.stack([number.detach().double() for number in (out.loss, value, trained_T.sum())])
            ratios_T = (now.logprobs_T.detach() - row.rollout_logprobs_T).clamp(-20, 20).exp()
            record.add(
                staleness_T=staleness_T,
                ratios_T=ratios_T,
                trained_T=trained_T,
                size_3=row.size_3,
                values=sums,
            )
        loss, value_loss, trained = self._ranks.sum(totals.cpu()).tolist()
        return loss, value_loss, trained > 0

    def _remember(
        self,
        result: StepResult,
        groups: Sequence[Group],
        baselines: RunningBaselines,
        unvaried_share: float | None,
    ) -> StepResult:
        """Add the batch's diversity to the result; after an update, remember what later batches need."""
        metrics = {**result.metrics, **diversity_of(groups, self._weights, self._shaping, unvaried_share)}
        entropy = metrics.pop("entropy", math.nan)
        metrics["token_entropy"] = entropy if result.tokens else math.nan
        metrics["entropy_coefficient"] = self.memory.active_entropy(self._loss.entropy)
        if not result.updates:
            return replace(result, metrics=metrics)
        self.memory, alarm = self.memory.after(self._loss.entropy, baselines, metrics)
        return replace(result, metrics=metrics, collapsing=alarm)

    def _clip(self) -> float:
        parameters = [parameter for _, parameter in self.policy.trained_parameters()]
        return float(whole(torch.nn.utils.clip_grad_norm_(parameters, self._config.learner.max_grad_norm)))

    def _forget_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        if self.critic is not None:
            self.critic.optimizer.zero_grad(set_to_none=True)

    def _apply(self, *, policy: bool, critic: bool) -> None:
        """Change what has a gradient."""
        if self.critic is not None and critic:
            self.critic.optimizer.step()
        if not policy or (self.critic is not None and self.critic.warming):
            return
        self.optimizer.step()
        if self.reference is not None:
            self.reference.follow(self.policy)

    def _set_learning_rate(self, step: int) -> float:
        learner = self._config.learner
        rate = learning_rate(step, peak=learner.learning_rate, steps=learner.steps, schedule=learner.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.critic is not None:
            self.critic.begin_step(step)
        return rate


def _taught(row: Row, now: Selected) -> Taught | None:
    """What the teacher says of a row, beside what the policy says of the teacher's likeliest tokens."""
    lesson = row.teacher
    if lesson is None:
        return None
    if lesson.ids_TK is None or lesson.top_TK is None or now.others_TK is None:
        return Taught(logprobs_T=lesson.logprobs_T)
    top = TeacherTop(
        logprobs_TK=now.others_TK,
        teacher_logprobs_TK=lesson.top_TK,
        sampled_TK=lesson.ids_TK == row.targets_T[:, None],
    )
    return Taught(logprobs_T=lesson.logprobs_T, top=top)


def _top_k(row: Row, now: Selected) -> TopK | None:
    """The rollout's likeliest tokens of a row under both policies."""
    if row.rollout_top is None or now.constants_TK is None:
        return None
    return TopK(
        logprobs_TK=now.constants_TK,
        rollout_logprobs_TK=row.rollout_top.logprobs_TK,
        sampled_TK=row.rollout_top.ids_TK == row.targets_T[:, None],
    )


def row_staleness(row: Row, version: int) -> torch.Tensor:
    """Age [T] of the row's tokens.

    After a crash the buffer may hold tokens of versions that were lost with the steps that made them; they
    count as fresh. Their ratios are right all the same: rollout logprobs are those of the sampling policy.
    """
    return token_staleness(version, row.versions_T.clamp(max=version))


def _check_tokens(groups: Sequence[Group], policy: Policy) -> None:
    """Rollouts with another vocabulary, caught before the embedding."""
    size = _vocabulary(policy)
    for group in groups:
        for token_ids in (group.prompt_token_ids, *(c.token_ids for c in group.completions)):
            if token_ids and not 0 <= min(token_ids) <= max(token_ids) < size:
                wrong = min(token_ids) if min(token_ids) < 0 else max(token_ids)
                raise ValueError(
                    f"group {group.group_id} has token {wrong}, and the model {size} tokens; rollout and "
                    "learner must use one model and one tokenizer"
                )


def _vocabulary(policy: Policy) -> int:
    return int(policy.model.config.get_text_config().vocab_size)
