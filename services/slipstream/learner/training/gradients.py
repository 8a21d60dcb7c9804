"""The gradient of one minibatch, accumulated over its rows.

    row ─▶ forward pass ─▶ policy loss, and value loss of a critic ─▶ backward pass

Shape suffixes: T sampled tokens of a row, B sequences of a row, K likeliest tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from slipstream.algorithms import (
    Taught,
    TeacherTop,
    TopK,
    critic,
    microbatch,
    over_age_mask,
    spec,
    token_staleness,
)
from slipstream.algorithms.loss import microbatch_loss
from slipstream.learner.batches.rows import Row
from slipstream.learner.policy import logprobs, routing
from slipstream.learner.training import row_constants, token_trace
from slipstream.learner.training.minibatch import RowConstants, RowTargets, WeightedMinibatch
from slipstream.learner.training.models import Models
from slipstream.learner.training.record import MinibatchLosses, Record


class Abandoned(Exception):
    """The step was stopped before it changed anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """Accumulates gradients of policy and critic."""

    loss: spec.LossSpec
    models: Models
    max_staleness: int
    """Policy versions; older tokens do not train."""

    def accumulate(
        self,
        minibatch: WeightedMinibatch,
        record: Record,
        *,
        version: int,
        entropy_coefficient: float,
        stopped: Callable[[], bool],
        trace: token_trace.TokenTrace | None = None,
    ) -> MinibatchLosses:
        """Add the gradient of each row, and add the row to the record and to the trace.

        All rows are divided by the counts of their minibatch, so the losses and gradients of rows and ranks
        add up. Errors: Abandoned if `stopped` becomes true on any rank before the first update of the step.
        """
        models, updated = self.models, record.updates > 0
        totals_3 = torch.zeros(3, dtype=torch.float64, device=models.policy.device)
        limit = row_constants.drift_bound(self.loss, minibatch, models, updated=updated)
        for row, constants, targets in zip(
            minibatch.rows, minibatch.constants, minibatch.targets, strict=True
        ):
            if models.ranks.any(not updated and stopped()):
                raise Abandoned
            now = models.forward(models.policy, row, constants.routed, others=True)
            staleness_T = row_staleness(row, version)
            policy = microbatch_loss(
                self.loss,
                _microbatch(row, constants, targets, now, staleness_T),
                counts=replace(
                    minibatch.counts,
                    prompt_tokens_B=row.prompt_tokens_B,
                    completion_tokens_B=row.completion_tokens_B,
                ),
                entropy_coefficient=entropy_coefficient,
                m2po_limit=limit,
                tally=record.tally,
            )
            trained_T = row.layout.mask_T & ~over_age_mask(staleness_T, self.max_staleness)
            value = self._value_loss(minibatch, row, constants, targets, now, trained_T)
            _backward(policy.loss, value, policy_trains=models.critic is None or not models.critic.warming)
            value_loss = torch.zeros_like(policy.loss) if value is None else value.loss
            row_3 = (policy.loss, value_loss, trained_T.sum())
            totals_3 += torch.stack([number.detach().double() for number in row_3])
            if trace is not None:
                trace.add(row, constants, targets, now, policy, trained_T)
            record.add_row(
                staleness_T=staleness_T,
                ratios_T=(now.logprobs_T.detach() - row.rollout_logprobs_T).clamp(-20, 20).exp(),
                trained_T=trained_T,
                size_3=row.size_3,
                values={} if value is None else value.sums,
            )
        loss, critic_loss, trained = models.ranks.sum(totals_3.cpu()).tolist()
        return MinibatchLosses(policy=loss, critic=critic_loss, trains=trained > 0)

    def _value_loss(
        self,
        minibatch: WeightedMinibatch,
        row: Row,
        constants: RowConstants,
        targets: RowTargets,
        now: logprobs.Selected,
        trained_T: torch.Tensor,
    ) -> critic.ValueLoss | None:
        """Return the loss of the critic, None without one."""
        if self.models.critic is None:
            return None
        return self.models.critic.loss(
            row,
            now.hidden_NH,
            old=constants.values,
            returns_T=targets.returns_T,
            trains_T=trained_T,
            counts=minibatch.counts,
        )


def row_staleness(row: Row, version: int) -> torch.Tensor:
    """Return the age [T] of the row's tokens in policy versions.

    After a crash the buffer may hold tokens of versions that were lost with the steps that made them. They
    count as fresh. Their ratios are right nevertheless: rollout logprobs are those of the sampling policy.
    """
    return token_staleness(version, row.versions_T.clamp(max=version))


def _microbatch(
    row: Row, constants: RowConstants, targets: RowTargets, now: logprobs.Selected, staleness_T: torch.Tensor
) -> microbatch.Microbatch:
    """Return the row as the policy loss reads it."""
    before, after = constants.routed, now.routed
    return microbatch.Microbatch(
        layout=row.layout,
        logprobs_T=now.logprobs_T,
        rollout_logprobs_T=row.rollout_logprobs_T,
        old_logprobs_T=constants.old_T,
        ref_logprobs_T=constants.ref_T,
        advantages=targets.advantages,
        staleness_T=staleness_T,
        entropy_T=now.entropy_T,
        selected_T=targets.selected_T,
        held_T=targets.held_T,
        router_shift_T=None if before is None or after is None else routing.router_shift(before, after),
        top_k=_top_k(row, now),
        taught=_taught(row, now),
    )


def _backward(policy: torch.Tensor, value: critic.ValueLoss | None, *, policy_trains: bool) -> None:
    """Add the gradient of both losses, or of the value loss alone in the warm-up of a critic."""
    total = policy if value is None else value.loss
    if value is not None and policy_trains:
        total = policy + value.loss
    total.backward()


def _taught(row: Row, now: logprobs.Selected) -> Taught | None:
    """Return the teacher's logprobs of a row, and the policy's of the teacher's likeliest tokens."""
    teacher = row.teacher
    if teacher is None:
        return None
    if teacher.ids_TK is None or teacher.top_TK is None or now.others_TK is None:
        return Taught(logprobs_T=teacher.logprobs_T)
    top = TeacherTop(
        logprobs_TK=now.others_TK,
        teacher_logprobs_TK=teacher.top_TK,
        sampled_TK=teacher.ids_TK == row.targets_T[:, None],
    )
    return Taught(logprobs_T=teacher.logprobs_T, top=top)


def _top_k(row: Row, now: logprobs.Selected) -> TopK | None:
    """Return the logprobs of the rollout's likeliest tokens under both policies."""
    if row.rollout_top is None or now.constants_TK is None:
        return None
    return TopK(
        logprobs_TK=now.constants_TK,
        rollout_logprobs_TK=row.rollout_top.logprobs_TK,
        sampled_TK=row.rollout_top.ids_TK == row.targets_T[:, None],
    )
