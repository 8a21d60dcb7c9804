"""Covariance of logprob and advantage by token: tokens with a large covariance reduce the entropy most.

Suffixes: _N tokens of a whole optimizer batch, _T packed tokens, _B sequences.
"""

from typing import Final

import torch
from torch import Tensor

from slipstream.algorithms.checks import require_shape

_MIX: Final = (-0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
"""The constants of SplitMix64 as signed integers: the golden ratio, then the two multipliers."""
_MASK: Final = ((1 << 34) - 1, (1 << 37) - 1, (1 << 33) - 1)
"""Masks that make the arithmetic shifts by 30, 27 and 31 bits logical ones: they clear the copies of the
sign."""


def token_covariances(logprobs: Tensor, advantages: Tensor, means: tuple[float, float]) -> Tensor:
    """Return (l - mean of l) (A - mean of A), [T] in float64: their mean is the covariance of the batch.

    logprobs: [T] nats. advantages: [T]. means: of logprobs and advantages over the whole batch.
    See The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models, arXiv:2505.22617.
    Raises ValueError for shapes that differ.
    """
    require_shape("advantages", advantages, tuple(logprobs.shape), "logprobs")
    return (logprobs.detach().double() - means[0]) * (advantages.detach().double() - means[1])


def draws(places: Tensor, positions: Tensor, *, seed: int) -> Tensor:
    """Return a number in [0, 1) for each token, [T] in float64: the same on any rank and in any packing.

    places: [T] integers, which completion of the batch the token is of; positions: [T], which of its tokens.
    seed: another batch draws other numbers. See Fast Splittable Pseudorandom Number Generators (Steele, Lea
    and Flood, 2014), for the mixing function.
    """
    key_T = _mixed(_mixed(torch.full_like(places.long(), seed)) + places.long())
    bits_T = _mixed(key_T + positions.long())
    return ((bits_T >> 11) & ((1 << 53) - 1)).double() / float(1 << 53)


def _mixed(value_T: Tensor) -> Tensor:
    value_T = value_T + _MIX[0]
    value_T = (value_T ^ ((value_T >> 30) & _MASK[0])) * _MIX[1]
    value_T = (value_T ^ ((value_T >> 27) & _MASK[1])) * _MIX[2]
    return value_T ^ ((value_T >> 31) & _MASK[2])
