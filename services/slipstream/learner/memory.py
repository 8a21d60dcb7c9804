"""What learning remembers from batch to batch beside weights and moments; part of a checkpoint."""

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
    entropy_coefficient: float = 0.0
    entropy: float = 0.0
    """Mean token entropy of the last batch, in nats; 0 before the first."""

    @classmethod
    def fresh(cls, entropy: Entropy | None, alarm: CollapseAlarm) -> "Memory":
        """At the start of a run."""
        return cls(
            watch=CollapseWatch(spec=alarm), entropy_coefficient=entropy.coefficient if entropy else 0.0
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
        entropy = metrics.get("token_entropy", 0.0)
        coefficient = (
            adapt_entropy(spec, self.entropy_coefficient, entropy) if spec else self.entropy_coefficient
        )
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
            "entropy_coefficient": self.entropy_coefficient,
            "entropy": self.entropy,
        }

    def restored(self, state: Mapping[str, Any]) -> "Memory":
        """This memory with what a checkpoint remembers; an older one, which has none, changes nothing."""
        if not state:
            return self
        return replace(
            self,
            watch=CollapseWatch.from_dict(self.watch.spec, state["watch"]),
            baselines=RunningBaselines(averages=state["baselines"]),
            entropy_coefficient=float(state["entropy_coefficient"]),
            entropy=float(state["entropy"]),
        )
