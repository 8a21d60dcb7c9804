"""The rows of one optimizer step: with their precomputed constants, and then with their advantages.

Shape suffixes: T sampled tokens of a row, B sequences of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slipstream.algorithms import Counts
from slipstream.learner.batches.rows import Row
from slipstream.learner.policy.routing import Routed
from slipstream.learner.training.critic import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class RowConstants:
    """Values of one row by the models at the start of the batch; None where the loss does not read them."""

    old_T: torch.Tensor | None = None
    """Logprobs of the policy, nats."""
    ref_T: torch.Tensor | None = None
    """Logprobs of the reference, nats."""
    selected_T: torch.Tensor | None = None
    """Bool: the tokens that top_entropy lets train."""
    routed: Routed | None = None
    """The active experts and their router's logprobs, for rspo."""
    energies_T: torch.Tensor | None = None
    """1 - 2 p + sum of p^2, for the advantage optimal_token."""
    values: Values | None = None
    """Predictions of the critic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Minibatch:
    """The rows of one optimizer step, before their advantages are known."""

    rows: Sequence[Row]
    counts: Counts
    """Counts of the tokens, sequences and prompts of all ranks, by which the loss is divided."""
    constants: Sequence[RowConstants]
    """Constants of each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTargets:
    """The values that the tokens of one row are trained with."""

    advantages: torch.Tensor
    """[B], one for each sequence; [T] with a critic, a baseline by token, or rewards by step."""
    returns_T: torch.Tensor | None = None
    """The targets of the critic, in units of reward."""
    selected_T: torch.Tensor | None = None
    """Bool: the tokens that top_entropy and clip_cov let train; None for all."""
    held_T: torch.Tensor | None = None
    """Bool: the tokens that kl_cov holds near the anchor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedMinibatch(Minibatch):
    """The same rows with their advantages, ready to train."""

    targets: Sequence[RowTargets]
    """Targets of each row."""


def with_advantages(
    minibatch: Minibatch,
    advantages: Sequence[torch.Tensor],
    returns: Sequence[torch.Tensor | None] | None = None,
) -> WeightedMinibatch:
    """Return the minibatch with advantages ([B] or [T]) of each row, and with a critic returns [T]."""
    rows = zip(minibatch.constants, advantages, returns or [None] * len(advantages), strict=True)
    return WeightedMinibatch(
        rows=minibatch.rows,
        counts=minibatch.counts,
        constants=minibatch.constants,
        targets=[
            RowTargets(advantages=advantage, returns_T=return_T, selected_T=constants.selected_T)
            for constants, advantage, return_T in rows
        ],
    )


def per_token_advantages(advantages: torch.Tensor, row: Row) -> torch.Tensor:
    """Return advantages [T], from one for each sequence [B] or for each token [T]."""
    by_token = advantages.shape == row.sequence_ids_T.shape
    return advantages if by_token else advantages[row.sequence_ids_T]
