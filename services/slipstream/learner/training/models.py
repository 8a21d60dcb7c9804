"""The models of a training step."""

from dataclasses import dataclass

from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.reference import Reference
from slipstream.learner.ranks.ranks import Ranks
from slipstream.learner.training.critic import Critic
from slipstream.learner.training.forward import Forward


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The models of a training step, their forward pass, and the ranks that share them."""

    policy: Policy
    reference: Reference | None = None
    """Only in a run with a KL term."""
    critic: Critic | None = None
    """Only in a run with the advantage gae."""
    forward: Forward
    ranks: Ranks
