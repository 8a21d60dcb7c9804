"""The advantages of a batch: rewards, the KL penalty in them, baselines.

    rewards of the verifier ─▶ shaping, KL penalty ─▶ baseline or critic ─▶ advantages of each row

Shape suffixes: T sampled tokens of a row, B completions of the batch in order.
"""

from collections.abc import Sequence

import torch

from slipstream import algorithms, records
from slipstream.algorithms import segments
from slipstream.algorithms.baselines import RunningBaselines
from slipstream.algorithms.spec import Advantage, Ema, Gae, LossSpec, Mixed, OptimalToken, Shaping
from slipstream.config import RunConfig
from slipstream.learner.batches import batch, packing
from slipstream.learner.batches.row_sharding import RowSharding
from slipstream.learner.training.critic_advantages import critic_advantages
from slipstream.learner.training.minibatch import Minibatch, WeightedMinibatch, with_advantages
from slipstream.learner.training.models import Models
from slipstream.learner.training.rewards import BatchRewards, batch_rewards
from slipstream.learner.training.step_rewards import advantages_by_step, step_rewards
from slipstream.learner.training.token_baseline import advantages_by_token


class BatchAdvantages:
    """Computes one advantage for each completion, or for each token.

    Tokens of a completion differ with a critic, with a baseline by token, and with rewards by step.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        advantage: Advantage,
        loss: LossSpec,
        shaping: Shaping,
        models: Models,
        row_sharding: RowSharding,
    ) -> None:
        self._advantage = advantage
        self._loss = loss
        self._shaping = shaping
        self._models = models
        self._row_sharding = row_sharding
        self._by_teacher_alone = loss.by_teacher_alone and not isinstance(advantage, Gae)
        self._by_step = config.algorithm.supervision == "process"
        self._max_tokens = config.learner.max_tokens_per_row
        self._weights: dict[str, float] = {reward.name: reward.weight for reward in config.rewards}

    def of_batch(
        self, minibatches: Sequence[Minibatch], groups: Sequence[records.Group], baselines: RunningBaselines
    ) -> tuple[list[WeightedMinibatch], RunningBaselines]:
        """Return the minibatches with their advantages, and the running baselines after the batch.

        If the policy learns from a teacher alone, all advantages are 0. No baseline is computed then, so a
        group may have one completion.
        """
        if self._by_teacher_alone:
            zero_B = torch.zeros(sum(len(group.completions) for group in groups), dtype=torch.float64)
            return [_by_completion(minibatch, zero_B) for minibatch in minibatches], baselines
        spec, ranks = self._advantage, self._models.ranks
        rewards = self.rewards(groups)
        if isinstance(spec, OptimalToken):
            return [
                with_advantages(m, advantages_by_token(spec, rewards, m, ranks)) for m in minibatches
            ], baselines
        steps = step_rewards(groups, rewards, self._weights) if self._by_step else None
        if isinstance(spec, Gae):
            return self._by_critic(spec, minibatches, groups, rewards, steps), baselines
        if steps is not None:
            return [
                with_advantages(m, advantages_by_step(spec, steps, rewards.group_ids_B, m.rows))
                for m in minibatches
            ], baselines
        advantages_B, baselines = self._of_completions(rewards, baselines)
        return [_by_completion(minibatch, advantages_B) for minibatch in minibatches], baselines

    def rewards(self, groups: Sequence[records.Group]) -> BatchRewards:
        """Return the shaped rewards, minus the KL penalty if its placement is `reward`.

        The penalty of every scored completion counts, also of those that do not train: each is in the mean of
        its group. The penalty of a completion is the sum over its segments.
        """
        rewards = batch_rewards(groups, self._weights, self._shaping)
        kl = self._loss.kl
        # gae subtracts the KL penalty per token, in critic_advantages
        if kl is None or kl.placement != "reward" or isinstance(self._advantage, Gae):
            return rewards
        models = self._models
        assert models.reference is not None, "load_reference loads one wherever there is a KL term"
        penalty_B = torch.zeros_like(rewards.lengths_B)
        scored = batch.make_sequences(groups, Shaping())
        fitting, _ = packing.without_too_long(scored, self._max_tokens)
        for row in self._row_sharding.rows(fitting):
            ref_T = models.forward.without_gradient(models.reference.policy, row).logprobs_T
            penalty_T = algorithms.reward_penalty(1.0, row.rollout_logprobs_T, ref_T, row.mask_T)
            of_row_B = segments.segment_sum(penalty_T.double(), row.sequence_ids_T, row.places_B.shape[0])
            penalty_B.index_add_(0, row.places_B.cpu(), of_row_B.cpu())
        return rewards.plus(-models.ranks.sum(penalty_B), weight=kl.coefficient)

    def _by_critic(
        self,
        spec: Gae,
        minibatches: Sequence[Minibatch],
        groups: Sequence[records.Group],
        rewards: BatchRewards,
        steps: algorithms.StepRewards | None,
    ) -> list[WeightedMinibatch]:
        advantages = critic_advantages(
            spec, self._loss.kl, groups, rewards.total_B, minibatches, self._models.ranks, steps=steps
        )
        return [
            with_advantages(
                minibatch, [row.advantages_T for row in of_rows], [row.returns_T for row in of_rows]
            )
            for minibatch, of_rows in zip(minibatches, advantages, strict=True)
        ]

    def _of_completions(
        self, rewards: BatchRewards, baselines: RunningBaselines
    ) -> tuple[torch.Tensor, RunningBaselines]:
        """Return the advantages [B] of all completions, and the running baselines after the batch."""
        baselines_B = None
        if isinstance(self._advantage, Ema | Mixed):
            total = rewards.total_B.tolist()
            baselines_B = torch.tensor(baselines.of(rewards.keys, total), dtype=torch.float64)
            baselines = baselines.after(rewards.keys, total, self._advantage.decay)
        advantages_B = algorithms.group_advantages(
            self._advantage,
            rewards.components_BN,
            rewards.group_ids_B,
            applies=rewards.applies_BN,
            weights=rewards.weights_N,
            lengths=rewards.lengths_B,
            baselines=baselines_B,
        )
        return advantages_B, baselines


def _by_completion(minibatch: Minibatch, advantages_B: torch.Tensor) -> WeightedMinibatch:
    """Return the minibatch with one advantage for each sequence. Duplicate answers share theirs."""
    advantages = [
        advantages_B[row.places_B.cpu()].to(row.shares_B.device) * row.shares_B for row in minibatch.rows
    ]
    return with_advantages(minibatch, advantages)
