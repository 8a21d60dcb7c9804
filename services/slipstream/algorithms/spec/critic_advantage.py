"""The advantage of a policy that trains with a critic, as data."""

from dataclasses import dataclass
from typing import Literal

from slipstream.algorithms.spec.checks import (
    STRICT,
    Positive,
    Share,
    require_boolean,
    require_choice,
    require_ranges,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gae:
    """A = d_t + gamma lam A_(t+1) for each token, d_t = r_t + gamma V_(t+1) - V_t with a critic's V.

    The reward of a completion arrives at its last sampled token; a KL in the reward is taken off each token.
    Returns A + V, which the critic learns, are those before whitening. A group of one completion is enough.
    See High-Dimensional Continuous Control Using Generalized Advantage Estimation, arXiv:1506.02438.
    """

    __pydantic_config__ = STRICT

    kind: Literal["gae"] = "gae"
    gamma: Share = 1.0
    """Discount of a token; 1 is usual for language models (the paper has 0.99)."""
    lam: Share = 1.0
    """Decay of the trace, in [0, 1]: with 1 returns are the rewards to go (the paper has 0.95)."""
    truncated: Literal["zero", "bootstrap"] = "zero"
    """Value after a completion that its budget cut off: 0 as after any other (slime, SkyRL), or V (AReaL)."""
    whiten: bool = True
    """Subtract the mean of all tokens of the batch, and divide by their standard deviation (ddof 1)."""
    epsilon: Positive = 1e-6
    """Added to that standard deviation, in units of reward."""

    def __post_init__(self) -> None:
        require_choice("gae.kind", self.kind, ("gae",))
        require_ranges("gae", self)
        require_choice("gae.truncated", self.truncated, ("zero", "bootstrap"))
        require_boolean("gae.whiten", self.whiten)
