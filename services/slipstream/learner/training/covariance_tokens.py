"""The tokens that clip_cov drops and kl_cov holds: by the covariances of a whole minibatch, over all ranks.

Shape suffixes: T sampled tokens of a row, N tokens of the minibatch that have a loss.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from slipstream.algorithms.covariance import draws, token_covariances
from slipstream.algorithms.segments import positions_in_segment
from slipstream.algorithms.spec import ClipCov, KlCov, LossSpec
from slipstream.learner.batches.rows import Row
from slipstream.learner.ranks.ranks import Ranks
from slipstream.learner.training.advantages import Minibatch
from slipstream.learner.training.row_constants import per_token_advantages

ROUNDING = 1e-9
"""Covariances of a minibatch whose advantages are all equal differ by less, in nats times advantage."""


def choose(loss: LossSpec, minibatch: Minibatch, ranks: Ranks, *, seed: int) -> Minibatch:
    """The minibatch with what the covariances of its tokens decide; itself where they decide nothing.

    `seed`: whatever differs from batch to batch; every rank gives the same. Ranks and rows change nothing.
    """
    if not loss.needs_covariance or not minibatch.rows:
        return minibatch
    rows, known = minibatch.rows, list(minibatch.known)
    found = _covariances(minibatch, ranks)
    if loss.kl_cov is not None:
        held = _held(loss.kl_cov, rows, found, ranks, seed)
        known = [replace(k, held_T=held_T) for k, held_T in zip(known, held, strict=True)]
    if loss.clip_cov is not None:
        kept = _kept(loss.clip_cov, rows, found, ranks, seed)
        known = [
            replace(k, selected_T=kept_T if k.selected_T is None else k.selected_T & kept_T)
            for k, kept_T in zip(known, kept, strict=True)
        ]
    return replace(minibatch, known=known)


def _covariances(minibatch: Minibatch, ranks: Ranks) -> list[torch.Tensor]:
    """The covariance of each token [T] of each row, with the means of the whole minibatch."""
    logprobs = [known.old_T for known in minibatch.known if known.old_T is not None]
    advantages = [
        per_token_advantages(a, r) for a, r in zip(minibatch.advantages, minibatch.rows, strict=True)
    ]
    masks = [row.mask_T.bool() for row in minibatch.rows]

    def mean(values: Sequence[torch.Tensor]) -> float:
        own_N = [value_T[mask_T].double() for value_T, mask_T in zip(values, masks, strict=True)]
        return float(ranks.gather(torch.cat(own_N)).mean())

    means = mean(logprobs), mean(advantages)
    return [token_covariances(one, other, means) for one, other in zip(logprobs, advantages, strict=True)]


def _held(
    spec: KlCov, rows: Sequence[Row], found: Sequence[torch.Tensor], ranks: Ranks, seed: int
) -> list[torch.Tensor]:
    """Bool [T] of each row: the given share of the minibatch's tokens, those of the largest covariance.

    Lots decide among equal ones. None is held where all are equal, as where all advantages are.
    """
    masks, numbers = [row.mask_T.bool() for row in rows], _numbers(rows, seed)
    cov_N, number_N = (
        ranks.gather(torch.cat([value_T[mask_T] for value_T, mask_T in zip(values, masks, strict=True)]))
        for values in (found, numbers)
    )
    if not cov_N.numel() or float(cov_N.max() - cov_N.min()) <= ROUNDING:
        return [torch.zeros_like(mask_T) for mask_T in masks]
    count = max(1, round(spec.share * cov_N.numel()))
    by_lot_N = number_N.argsort()
    last = by_lot_N[cov_N[by_lot_N].argsort(descending=True, stable=True)[count - 1]]
    bound, lot = float(cov_N[last]), float(number_N[last])
    return [
        mask_T & ((cov_T > bound) | ((cov_T == bound) & (number_T <= lot)))
        for mask_T, cov_T, number_T in zip(masks, found, numbers, strict=True)
    ]


def _numbers(rows: Sequence[Row], seed: int) -> list[torch.Tensor]:
    """The lot of each token [T] of each row."""
    return [
        draws(row.places_B[row.sequence_ids_T], positions_in_segment(row.sequence_ids_T), seed=seed)
        for row in rows
    ]


def _kept(
    spec: ClipCov, rows: Sequence[Row], found: Sequence[torch.Tensor], ranks: Ranks, seed: int
) -> list[torch.Tensor]:
    """Bool [T] of each row: all tokens but the drawn ones of those with a covariance between the bounds."""
    numbers = _numbers(rows, seed)
    inside = [
        (cov_T > spec.low) & (cov_T < spec.high) & row.mask_T.bool()
        for cov_T, row in zip(found, rows, strict=True)
    ]
    own = [number_T[inside_T] for number_T, inside_T in zip(numbers, inside, strict=True)]
    tokens = float(ranks.sum(torch.stack([row.mask_T.sum() for row in rows]).sum().double()))
    drawn_N = ranks.gather(torch.cat(own)).sort().values
    count = min(max(1, int(spec.share * tokens)), drawn_N.numel())
    bound = float(drawn_N[count - 1]) if count else -math.inf
    return [~(inside_T & (number_T <= bound)) for number_T, inside_T in zip(numbers, inside, strict=True)]
