"""Specification of the advantage of a policy that trains with a critic."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from slipstream.algorithms.spec import checks, kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Gae(kinds.AdvantageKind):
    """A = d_t + gamma lam A_(t+1) for each token, d_t = r_t + gamma V_(t+1) - V_t with a critic's V.

    The reward of a completion arrives at its last sampled token; a KL in the reward is taken off each token.
    Returns A + V, which the critic learns, are those before whitening. A group of one completion is enough.
    See High-Dimensional Continuous Control Using Generalized Advantage Estimation, arXiv:1506.02438.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.generalized_advantage:gae"
    by_token: ClassVar[bool] = True

    kind: Literal["gae"] = "gae"
    gamma: checks.Share = 1.0
    """Discount of a token; 1 is usual for language models (the paper has 0.99)."""
    lam: checks.Share = 1.0
    """Decay of the trace, in [0, 1]: with 1 returns are the rewards to go (the paper has 0.95)."""
    truncated: Literal["zero", "bootstrap"] = "zero"
    """Value after a completion that its budget cut off: 0 as after any other (slime, SkyRL), or V (AReaL)."""
    whiten: bool = True
    """Subtract the mean of all tokens of the batch, and divide by their standard deviation (ddof 1)."""
    epsilon: checks.Positive = 1e-6
    """Added to the standard deviation by which whitening divides, in units of reward."""

    @property
    def needs_groups(self) -> bool:
        """The baseline is the critic's value."""
        return False

    @property
    def undefined_by_step(self) -> kinds.Undefined | None:
        """The reward of a step is that of its last token."""
        return None
