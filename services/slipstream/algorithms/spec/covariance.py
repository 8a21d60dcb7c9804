"""Specifications of token selections by the covariance of logprob and advantage (Clip-Cov, KL-Cov).

The covariance of a token is (l - mean of l) (A - mean of A), with the means over the optimizer batch and l of
the policy before it. A likely token with a large advantage lowers the entropy of the policy, and so does an
unlikely token with a small one. A few tokens cause most of the loss of entropy.
See The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models, arXiv:2505.22617.
"""

from dataclasses import dataclass

from slipstream.algorithms.spec.checks import STRICT, Fraction, Positive, require_fields
from slipstream.algorithms.spec.invalid import InvalidPart


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipCov:
    """Some tokens with low < covariance < high, drawn at random, have no gradient: at most share of all.

    They stay in the normaliser. See arXiv:2505.22617, Clip-Cov.
    """

    __pydantic_config__ = STRICT

    share: Fraction = 2e-4
    """Share of the batch's tokens that is dropped at most; one token at least."""
    low: Positive = 1.0
    """Least covariance of a token that may be dropped, in nats × units of advantage."""
    high: Positive = 5.0
    """Largest covariance of a token that may be dropped, in nats × units of advantage."""

    def __post_init__(self) -> None:
        require_fields("clip_cov", self)
        if self.low >= self.high:
            raise InvalidPart("clip_cov.high", f"got {self.high!r}, needs more than low, {self.low!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KlCov:
    """coefficient × |z| is added at the share of tokens with the largest covariance, z = l - a.

    a is the anchor of the objective; the gradient is coefficient × the sign of z, as in the authors' code.
    See arXiv:2505.22617, KL-Cov.
    """

    __pydantic_config__ = STRICT

    share: Fraction = 2e-3
    """Share of the batch's tokens that is held; one token at least (the paper: 2e-3 for 7B, 2e-4
    for 32B)."""
    coefficient: Positive = 1.0
    """Factor of the term in the loss."""

    def __post_init__(self) -> None:
        require_fields("kl_cov", self)
