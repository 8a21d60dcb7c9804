"""What learning remembers from batch to batch beside weights and moments; part of a checkpoint."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slipstream.algorithms import active_entropy, adapt_entropy
from slipstream.algorithms.baselines import RunningBaselines
from slipstream.algorithms.shaping import CollapseWatch
from slipstream.algorithms.spec import CollapseAlarm, Entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Running baselines by task, the adaptive entropy coefficient, and the watch for a collapse."""

    watch: CollapseWatch
    baselines: RunningBaselines = field(default_factory=RunningBaselines)
    target: float | None = None
    """Entropy that the coefficient adapts to; None where it does not adapt."""
    entropy_coefficient: float = 0.0
    entropy: float = 0.0
    """Mean token entropy of the last batch, in nats; 0 before the first."""

    @classmethod
    def fresh(cls, entropy: Entropy | None, alarm: CollapseAlarm) -> "Memory":
        """At the start of a run."""
        return cls(
            watch=CollapseWatch(spec=alarm),
            target=entropy.target if entropy else None,
            entropy_coefficient=entropy.coefficient if entropy else 0.0,
        )

    def active_entropy(self, spec: Entropy | None) -> float:
        """The entropy coefficient of this step, judged by the entropy of the last batch."""
        return 0.0 if spec is None else active_entropy(spec, self.entropy_coefficient, self.entropy)

    def after(
        self, spec: Entropy | None, baselines: RunningBaselines, metrics: Mapping[str, float]
    ) -> tuple["Memory", bool]:
        """The memory after a step, and whether the policy looks like collapsing.

        metrics: those of the loss and of diversity, by name, with the mean entropy as `token_entropy`.
        """
        entropy, coefficient = metrics.get("token_entropy", math.nan), self.entropy_coefficient
        if math.isfinite(entropy):
            coefficient = adapt_entropy(spec, coefficient, entropy) if spec else coefficient
        else:
            entropy = self.entropy  # no token trained, so nothing was learned about it
        watch, alarm = self.watch.after(metrics)
        after = replace(
            self, watch=watch, baselines=baselines, entropy_coefficient=coefficient, entropy=entropy
        )
        return after, alarm

    def to_dict(self) -> dict[str, Any]:
        """For a checkpoint: plain values."""
        return {
            "watch": self.watch.to_dict(),
            "baselines": self.baselines.to_dict(),
            "target": self.target,
            "entropy_coefficient": self.entropy_coefficient,
            "entropy": self.entropy,
        }

    def restored(self, state: Mapping[str, Any]) -> "Memory":
        """This memory with what a checkpoint remembers; an older one, which has none, changes nothing.

        The entropy coefficient goes on only where it adapts, and to the same target: else the configuration,
        which may have changed, says what it is.
        """
        if not state:
            return self
        goes_on = self.target is not None and state["target"] == self.target
        return replace(
            self,
            watch=CollapseWatch.from_dict(self.watch.spec, state["watch"]),
            baselines=RunningBaselines(averages=state["baselines"]),
            entropy_coefficient=float(state["entropy_coefficient"]) if goes_on else self.entropy_coefficient,
            entropy=float(state["entropy"]),
        )
