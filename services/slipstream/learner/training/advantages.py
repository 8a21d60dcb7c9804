"""What the tokens of a batch are trained with: rewards, the divergence in them, baselines, advantages.

Shape suffixes: T sampled tokens of a row, B completions of the batch in order, N reward components.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from slipstream.algorithms import Counts, StepRewards, group_advantages, reward_penalty
from slipstream.algorithms.baselines import RunningBaselines
from slipstream.algorithms.segments import segment_sum
from slipstream.algorithms.spec import Advantage, Ema, Gae, LossSpec, Mixed, OptimalToken, Shaping
from slipstream.config import RunConfig
from slipstream.learner.batches.batch import make_sequences
from slipstream.learner.batches.packing import without_too_long
from slipstream.learner.batches.row_sharding import RowSharding
from slipstream.learner.batches.rows import Row
from slipstream.learner.policy.reference import Reference
from slipstream.learner.ranks.ranks import Ranks
from slipstream.learner.training.critic_advantages import TokenAdvantages, critic_advantages
from slipstream.learner.training.forward import Forward
from slipstream.learner.training.rewards import BatchRewards, batch_rewards
from slipstream.learner.training.row_constants import RowConstants
from slipstream.learner.training.step_rewards import advantages_by_step, step_rewards
from slipstream.learner.training.token_baseline import advantages_by_token
from slipstream.records import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Minibatch:
    """The rows of one optimizer step, the counts that their loss is divided by, and what is known of each."""

    rows: Sequence[Row]
    counts: Counts
    known: Sequence[RowConstants] = ()
    advantages: Sequence[torch.Tensor] = ()
    """[B] of each row, or with a critic, a baseline by token or rewards by step [T]."""


class BatchAdvantages:
    """Gives each completion its advantage, or each token its own: with a critic, a baseline by token, or
    rewards by step."""

    def __init__(
        self,
        config: RunConfig,
        *,
        advantage: Advantage,
        loss: LossSpec,
        shaping: Shaping,
        reference: Reference | None,
        row_sharding: RowSharding,
        forward: Forward,
        ranks: Ranks,
    ) -> None:
        self._advantage = advantage
        self._loss = loss
        self._shaping = shaping
        self._reference = reference
        self._row_sharding = row_sharding
        self._forward = forward
        self._ranks = ranks
        self._by_teacher_alone = loss.by_teacher_alone and not isinstance(advantage, Gae)
        self._by_step = config.algorithm.supervision == "process"
        self._max_tokens = config.learner.max_tokens_per_row
        self._weights: dict[str, float] = {reward.name: reward.weight for reward in config.rewards}

    def of_batch(
        self, minibatches: Sequence[Minibatch], groups: Sequence[Group], baselines: RunningBaselines
    ) -> tuple[list[Minibatch], RunningBaselines]:
        """The minibatches with what their tokens are trained with, and the baselines after the batch.

        Where a teacher alone is learned from, advantages are 0 and nothing asks for a baseline: a group may
        have one completion.
        """
        if self._by_teacher_alone:
            none_B = torch.zeros(sum(len(group.completions) for group in groups), dtype=torch.float64)
            return [_with_one_each(minibatch, none_B) for minibatch in minibatches], baselines
        rewards = self.rewards(groups)
        if isinstance(self._advantage, OptimalToken):
            return [self._with_token_baseline(self._advantage, rewards, m) for m in minibatches], baselines
        steps = step_rewards(groups, rewards, self._weights) if self._by_step else None
        if not isinstance(self._advantage, Gae) and steps is not None:
            return [self._with_steps(steps, rewards.group_ids_B, m) for m in minibatches], baselines
        if not isinstance(self._advantage, Gae):
            advantages_B, baselines = self._advantages(rewards, baselines)
            return [_with_one_each(minibatch, advantages_B) for minibatch in minibatches], baselines
        parts = [(minibatch.rows, minibatch.known) for minibatch in minibatches]
        credit = critic_advantages(
            self._advantage, self._loss.kl, groups, rewards.total_B, parts, self._ranks, steps=steps
        )
        ready = [_with_credit(part, found) for part, found in zip(minibatches, credit, strict=True)]
        return ready, baselines

    def rewards(self, groups: Sequence[Group]) -> BatchRewards:
        """Shaped rewards; the divergence from the reference is taken off where that is its place.

        It is known of every scored completion, whether it trains or not: all count in their group's mean.
        """
        rewards = batch_rewards(groups, self._weights, self._shaping)
        kl = self._loss.kl
        if (
            kl is None or kl.placement != "reward" or isinstance(self._advantage, Gae)
        ):  # which takes it off each token
            return rewards
        assert self._reference is not None, "a reference is loaded wherever there is a KL term"
        penalty_B = torch.zeros_like(rewards.lengths_B)
        everything = make_sequences(groups, Shaping())
        fitting, _ = without_too_long(everything, self._max_tokens)
        for row in self._row_sharding.rows(fitting):
            ref_T = self._forward.without_gradient(self._reference.policy, row).logprobs_T
            penalty_T = reward_penalty(1.0, row.rollout_logprobs_T, ref_T, row.mask_T)
            of_row_B = segment_sum(penalty_T.double(), row.sequence_ids_T, row.places_B.shape[0])
            penalty_B[row.places_B.cpu()] += of_row_B.cpu()
        return rewards.plus(-self._ranks.sum(penalty_B), weight=kl.coefficient)

    def _with_token_baseline(
        self, spec: OptimalToken, rewards: BatchRewards, minibatch: Minibatch
    ) -> Minibatch:
        found = advantages_by_token(spec, rewards, minibatch.rows, minibatch.known, self._ranks)
        return replace(minibatch, advantages=found)

    def _with_steps(self, steps: StepRewards, group_ids_B: torch.Tensor, minibatch: Minibatch) -> Minibatch:
        found = advantages_by_step(self._advantage, steps, group_ids_B, minibatch.rows)
        return replace(minibatch, advantages=found)

    def _advantages(
        self, rewards: BatchRewards, baselines: RunningBaselines
    ) -> tuple[torch.Tensor, RunningBaselines]:
        """One advantage for each completion of the batch, and the baselines after it."""
        found = None
        if isinstance(self._advantage, Ema | Mixed):
            total = rewards.total_B.tolist()
            found = torch.tensor(baselines.of(rewards.keys, total), dtype=torch.float64)
            baselines = baselines.after(rewards.keys, total, self._advantage.decay)
        advantages_B = group_advantages(
            self._advantage,
            rewards.components_BN,
            rewards.group_ids_B,
            weights=rewards.weights_N,
            lengths=rewards.lengths_B,
            baselines=found,
        )
        return advantages_B, baselines


def _with_one_each(minibatch: Minibatch, advantages_B: torch.Tensor) -> Minibatch:
    """The minibatch with the advantage of each sequence of each row, shared among equal answers."""
    found = [
        advantages_B[row.places_B.cpu()].to(row.shares_B.device) * row.shares_B for row in minibatch.rows
    ]
    return replace(minibatch, advantages=found)


def _with_credit(minibatch: Minibatch, credit: Sequence[TokenAdvantages]) -> Minibatch:
    """The minibatch with the advantage and the return of each token of each row."""
    known = [replace(k, returns_T=c.returns_T) for k, c in zip(minibatch.known, credit, strict=True)]
    return replace(minibatch, known=known, advantages=[c.advantages_T for c in credit])
