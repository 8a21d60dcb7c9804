"""The forward pass of a row under a policy, with the outputs that the loss of a run reads."""

import torch

from slipstream.config.sections.learner import LearnerConfig
from slipstream.learner.batches.rows import Row
from slipstream.learner.policy import logprobs, model, routing
from slipstream.learner.training.critic import value_positions


class Forward:
    """Computes logprobs and entropies of the sampled tokens of a row, at the rollout's temperature."""

    def __init__(
        self, learner: LearnerConfig, *, temperature: float, entropy: bool, hidden: bool, routers: bool
    ) -> None:
        """Take what differs between algorithms.

        temperature: that of the rollout. entropy: whether entropies have a gradient.
        hidden: whether a critic reads the hidden states.
        routers: whether the active experts and their logprobs are recorded.
        """
        self._temperature = temperature
        self._chunk = learner.logprob_chunk
        self._replays = learner.replay_experts
        self._entropy = entropy
        self._hidden = hidden
        self._routers = routers

    def __call__(
        self,
        policy: model.Policy,
        row: Row,
        routed: routing.Routed | None = None,
        *,
        temperature: float | None = None,
        others: bool = False,
    ) -> logprobs.Selected:
        """Return logprobs and entropies, with gradient if torch records one.

        routed: experts whose router logprobs are recorded; None for the active ones.
        temperature: None for that of the rollout.
        others: whether to return logprobs of the likeliest tokens of the teacher and of the rollout, if the
            row has them; those of the rollout's tokens are constants.
        """
        return policy.selected(
            row.tokens_R,
            row.positions_R,
            row.predictors_T,
            row.targets_T,
            temperature=temperature or self._temperature,
            chunk=self._chunk,
            attention_RR=row.attention_RR,
            entropy_gradient=self._entropy,
            others_TK=row.teacher.ids_TK if others and row.teacher is not None else None,
            constants_TK=row.rollout_top.ids_TK if others and row.rollout_top is not None else None,
            hidden_at_N=value_positions(row) if self._hidden else None,
            watch=routing.Watch(
                records=self._routers,
                experts_TLK=None if routed is None else routed.experts_TLK,
                replay_RLK=row.experts_RLK if self._replays else None,
            ),
        )

    def without_gradient(self, policy: model.Policy, row: Row) -> logprobs.Selected:
        """Return logprobs and entropies as constants."""
        with torch.no_grad():
            return self(policy, row)

    def sharper(self, policy: model.Policy, row: Row) -> logprobs.Selected:
        """Return them at half the temperature: under the squares of the probabilities, normalised."""
        with torch.no_grad():
            return self(policy, row, temperature=self._temperature / 2)
