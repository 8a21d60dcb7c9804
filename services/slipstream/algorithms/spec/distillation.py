"""Specification of on-policy distillation: how the policy learns from a teacher's logprobs of its own tokens.

l = log pi and t = log teacher at one position, behind the tokens that the policy itself sampled.
"""

from dataclasses import dataclass
from typing import Final, Literal

from slipstream.algorithms.spec.checks import STRICT, Count, NotNegative, Positive, Share, require_fields
from slipstream.algorithms.spec.invalid import InvalidPart

KINDS: Final = ("advantage", "reverse", "forward", "mixed")
TOP_K: Final = 16
FORWARD_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """Learn from a teacher that reads what the policy sampled.

    advantage: sg(t - l) at the sampled token is added to its advantage, and so weighed, clipped and corrected
    like a reward; its expected gradient on policy is that of -KL(pi || teacher) at each position.
    reverse, forward, mixed: KL(pi || teacher), KL(teacher || pi), or a mean of the two, at each position, as
    a term of the loss with the weights of the aggregation, which no correction multiplies. They are taken
    over the teacher's top_k tokens, the sampled token and one cell for all others, so they are at most the
    divergence over the vocabulary.
    See On-Policy Distillation of Language Models, arXiv:2306.13649, MiniLLM, arXiv:2306.08543, and for
    `advantage` On-Policy Distillation (Lu and Thinking Machines Lab, 2025).
    """

    __pydantic_config__ = STRICT

    kind: Literal["advantage", "reverse", "forward", "mixed"] = "advantage"
    """What the teacher gives: an advantage of the sampled token, or a divergence between distributions."""
    coefficient: Positive = 1.0
    """Factor of the teacher's advantage, or of the divergence."""
    reward_weight: NotNegative = 0.0
    """Factor of the advantage by rewards; with 0 the policy learns from the teacher alone."""
    top_k: Count | None = None
    """Tokens of the teacher that a divergence is taken over; null: 16. An advantage takes none."""
    forward_share: Share | None = None
    """For `mixed`: share of KL(teacher || pi) in (0, 1), the rest is KL(pi || teacher); null: 0.5."""

    def __post_init__(self) -> None:
        require_fields("distillation", self)
        if self.top_k is not None and self.kind == "advantage":
            raise InvalidPart(
                "distillation.top_k",
                f"got {self.top_k}, and an advantage is of the sampled token alone",
                remedy="leave it out, or use reverse, forward or mixed",
            )
        if self.forward_share is not None and self.kind != "mixed":
            raise InvalidPart(
                "distillation.forward_share",
                f"got {self.forward_share:g}, and {self.kind} has no shares",
                remedy="leave it out, or use mixed",
            )

    @property
    def resolved_top_k(self) -> int:
        """Tokens of the teacher that are needed at each position, beside the sampled one."""
        if self.kind == "advantage":
            return 0
        return TOP_K if self.top_k is None else self.top_k

    @property
    def shares(self) -> tuple[float, float]:
        """Factors of KL(teacher || pi) and of KL(pi || teacher) in the divergence."""
        mixed = FORWARD_SHARE if self.forward_share is None else self.forward_share
        forward = {"forward": 1.0, "mixed": mixed}.get(self.kind, 0.0)
        return forward, 1.0 - forward
