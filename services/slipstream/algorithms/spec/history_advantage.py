"""Specifications of advantages whose baseline is an average over earlier batches.

The baseline b is the exponential moving average of the rewards of one task, or of one source of a mixture:
b <- decay b + (1 - decay) (mean reward in the batch). A batch uses b from before its own update. b starts at
the first mean observed, never at 0.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from slipstream.algorithms.spec import checks, kinds
from slipstream.algorithms.spec.invalid import InvalidPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Ema(kinds.AdvantageKind):
    """A = R - b, where a run keeps b by task, or by source in a mixture. A group of one completion is enough.

    See Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning (1992) for
    the baseline; decay as in prime-rl.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.advantages.history:ema"

    kind: Literal["ema"] = "ema"
    decay: checks.OpenShare = 0.95
    """What is left of the old average after a batch."""

    @property
    def needs_groups(self) -> bool:
        """The baseline is that of the task."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed(kinds.AdvantageKind):
    """A = R - (lam × mean of the other completions of the group + (1 - lam) b), b by task or source.

    With prior set, lam = (G - 1) / (G - 1 + prior): small groups lean on the average. Without it and with
    lam 1 it is RLOO. The shrinkage is ours, not from a paper.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.advantages.history:mixed"

    kind: Literal["mixed"] = "mixed"
    decay: checks.OpenShare = 0.95
    """What is left of the old average after a batch."""
    lam: checks.Share = 1.0
    """Share of the group's own baseline; with prior it is not given."""
    prior: checks.Positive | None = None
    """Completions that the average counts for; null: a constant lam."""

    def __post_init__(self) -> None:
        checks.require_fields("mixed", self)
        if self.prior is not None and self.lam != 1:
            raise InvalidPart(
                "mixed.lam",
                f"got {self.lam!r} with prior {self.prior!r}, which sets lam by the size of the group",
                remedy="needs one of the two",
            )
