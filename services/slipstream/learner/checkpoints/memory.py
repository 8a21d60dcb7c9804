"""State that passes from batch to batch, beside weights and moments; a part of checkpoints."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slipstream.algorithms import active_entropy, adapt_entropy, shaping
from slipstream.algorithms.baselines import RunningBaselines
from slipstream.algorithms.spec import CollapseAlarm, Entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Running baselines by task, the adaptive entropy coefficient, and the watch for a collapse."""

    watch: shaping.CollapseWatch
    baselines: RunningBaselines = field(default_factory=RunningBaselines)
    target: float | None = None
    """Entropy in nats that the coefficient adapts to; None if it does not adapt."""
    entropy_coefficient: float = 0.0
    entropy: float = 0.0
    """Mean token entropy of the last batch, in nats; 0 before the first."""

    @classmethod
    def fresh(cls, entropy: Entropy | None, alarm: CollapseAlarm) -> "Memory":
        """Return the state at the start of a run."""
        return cls(
            watch=shaping.CollapseWatch(spec=alarm),
            target=entropy.target if entropy else None,
            entropy_coefficient=entropy.coefficient if entropy else 0.0,
        )

    def active_entropy(self, spec: Entropy | None) -> float:
        """Return the entropy coefficient of this step, by the entropy of the last batch."""
        return 0.0 if spec is None else active_entropy(spec, self.entropy_coefficient, self.entropy)

    def after(
        self, spec: Entropy | None, baselines: RunningBaselines, metrics: Mapping[str, float]
    ) -> tuple["Memory", bool]:
        """Return the state after a step, and whether the policy may be collapsing.

        metrics: those of the loss and of diversity, by name, with the mean entropy as `token_entropy`.
        """
        entropy, coefficient = metrics.get("token_entropy", math.nan), self.entropy_coefficient
        if math.isfinite(entropy):
            coefficient = adapt_entropy(spec, coefficient, entropy) if spec else coefficient
        else:
            entropy = self.entropy  # no token trained in this step
        watch, alarm = self.watch.after(metrics)
        after = replace(
            self, watch=watch, baselines=baselines, entropy_coefficient=coefficient, entropy=entropy
        )
        return after, alarm

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return {
            "watch": self.watch.to_dict(),
            "baselines": self.baselines.to_dict(),
            "target": self.target,
            "entropy_coefficient": self.entropy_coefficient,
            "entropy": self.entropy,
        }

    def restored(self, state: Mapping[str, Any]) -> "Memory":
        """Return the state of a checkpoint, or this one for an older checkpoint without it.

        The entropy coefficient is restored only if it adapts to the same target. Otherwise the configuration,
        which may have changed, sets it.
        """
        if not state:
            return self
        same_target = self.target is not None and state["target"] == self.target
        return replace(
            self,
            watch=shaping.CollapseWatch.from_dict(self.watch.spec, state["watch"]),
            baselines=RunningBaselines(averages=state["baselines"]),
            entropy_coefficient=float(state["entropy_coefficient"])
            if same_target
            else self.entropy_coefficient,
            entropy=float(state["entropy"]),
        )
