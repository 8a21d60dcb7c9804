"""The tokens that clip_cov drops and kl_cov holds, by the covariances of a whole minibatch over all ranks.

Shape suffixes: T sampled tokens of a row, N tokens of the minibatch that have a loss.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from slipstream.algorithms.covariance import draws, token_covariances
from slipstream.algorithms.spec import ClipCov, KlCov, LossSpec
from slipstream.learner.batches.rows import Row
from slipstream.learner.ranks.ranks import Ranks
from slipstream.learner.training.minibatch import WeightedMinibatch, per_token_advantages

ROUNDING = 1e-9
"""Covariances of a minibatch whose advantages are all equal differ by less, in nats times advantage."""


def choose(loss: LossSpec, minibatch: WeightedMinibatch, ranks: Ranks, *, seed: int) -> WeightedMinibatch:
    """Return the minibatch with `selected_T` and `held_T` of its rows, by the covariances of their tokens.

    seed: differs from batch to batch, and is equal on all ranks. The choice does not depend on how the
    minibatch is packed into rows and shared among ranks.
    """
    if not loss.needs_covariance or not minibatch.rows:
        return minibatch
    rows, targets = minibatch.rows, list(minibatch.targets)
    covariances = _covariances(minibatch, ranks)
    if loss.kl_cov is not None:
        held = _held(loss.kl_cov, rows, covariances, ranks, seed)
        targets = [replace(each, held_T=held_T) for each, held_T in zip(targets, held, strict=True)]
    if loss.clip_cov is not None:
        kept = _kept(loss.clip_cov, rows, covariances, ranks, seed)
        targets = [
            replace(each, selected_T=kept_T if each.selected_T is None else each.selected_T & kept_T)
            for each, kept_T in zip(targets, kept, strict=True)
        ]
    return replace(minibatch, targets=targets)


def _covariances(minibatch: WeightedMinibatch, ranks: Ranks) -> list[torch.Tensor]:
    """Return the covariance of each token [T] of each row, around the means of the whole minibatch."""
    logprobs = [constants.old_T for constants in minibatch.constants if constants.old_T is not None]
    advantages = [
        per_token_advantages(targets.advantages, row)
        for targets, row in zip(minibatch.targets, minibatch.rows, strict=True)
    ]
    masks = [row.mask_T.bool() for row in minibatch.rows]

    def mean(values: Sequence[torch.Tensor]) -> float:
        own_N = [value_T[mask_T].double() for value_T, mask_T in zip(values, masks, strict=True)]
        return float(ranks.gather(torch.cat(own_N)).mean())

    means = mean(logprobs), mean(advantages)
    return [token_covariances(one, other, means) for one, other in zip(logprobs, advantages, strict=True)]


def _held(
    spec: KlCov, rows: Sequence[Row], covariances: Sequence[torch.Tensor], ranks: Ranks, seed: int
) -> list[torch.Tensor]:
    """Return bool [T] of each row: `spec.share` of the minibatch's tokens, those of the largest covariances.

    Random numbers break ties. No token is held if all covariances are equal, as with equal advantages.
    """
    masks, numbers = [row.mask_T.bool() for row in rows], _numbers(rows, seed)
    cov_N, number_N = (
        ranks.gather(torch.cat([value_T[mask_T] for value_T, mask_T in zip(values, masks, strict=True)]))
        for values in (covariances, numbers)
    )
    if not cov_N.numel() or float(cov_N.max() - cov_N.min()) <= ROUNDING:
        return [torch.zeros_like(mask_T) for mask_T in masks]
    count = max(1, round(spec.share * cov_N.numel()))
    by_number_N = number_N.argsort()
    last = by_number_N[cov_N[by_number_N].argsort(descending=True, stable=True)[count - 1]]
    bound, last_number = float(cov_N[last]), float(number_N[last])
    return [
        mask_T & ((cov_T > bound) | ((cov_T == bound) & (number_T <= last_number)))
        for mask_T, cov_T, number_T in zip(masks, covariances, numbers, strict=True)
    ]


def _numbers(rows: Sequence[Row], seed: int) -> list[torch.Tensor]:
    """Return a random number for each token [T] of each row."""
    return [draws(row.places_B[row.sequence_ids_T], row.order_T, seed=seed) for row in rows]


def _kept(
    spec: ClipCov, rows: Sequence[Row], covariances: Sequence[torch.Tensor], ranks: Ranks, seed: int
) -> list[torch.Tensor]:
    """Return bool [T] of each row: all tokens except a random share of those between the two bounds."""
    numbers = _numbers(rows, seed)
    inside = [
        (cov_T > spec.low) & (cov_T < spec.high) & row.mask_T.bool()
        for cov_T, row in zip(covariances, rows, strict=True)
    ]
    own = [number_T[inside_T] for number_T, inside_T in zip(numbers, inside, strict=True)]
    tokens = float(ranks.sum(torch.stack([row.mask_T.sum() for row in rows]).sum().double()))
    drawn_N = ranks.gather(torch.cat(own)).sort().values
    count = min(max(1, int(spec.share * tokens)), drawn_N.numel())
    bound = float(drawn_N[count - 1]) if count else -math.inf
    return [~(inside_T & (number_T <= bound)) for number_T, inside_T in zip(numbers, inside, strict=True)]
