"""Statistics of evaluations, and of all groups that actors sampled."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAccuracy:
    """The part of an evaluation that is of one source of a mixture. `accuracy`: None until one is scored."""

    completions: int
    errors: int
    accuracy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The state of a held-out evaluation; `accuracy` is the mean of one reward over `completions`.

    Sources of a mixture may have different rewards as their accuracy; all three measures are then over those.

    `best_of_n` is the mean of that reward over the prompts, for the completion of each prompt that all
    rewards together rank first. `majority` is the same for the most frequent answer (maj@k). n and k are the
    completions of each prompt. The three measures are None while no completion is scored.
    """

    done: bool
    version: int
    completions: int
    errors: int
    accuracy: float | None
    best_of_n: float | None
    majority: float | None
    mean_version: float
    by_source: Mapping[str, SourceAccuracy] = field(default_factory=dict)
    """Source name → results of the source; empty without a mixture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """Statistics of the scored groups since the previous step, both trained and filtered groups.

    `unvaried_groups` counts groups with equal task rewards. Sums and counts are over completions, by reward.
    `by_source` has the same statistics of each source of a mixture.
    """

    groups: int = 0
    unvaried_groups: int = 0
    reward_sums: Mapping[str, float] = field(default_factory=dict)
    reward_counts: Mapping[str, int] = field(default_factory=dict)
    by_source: Mapping[str, "Generated"] = field(default_factory=dict)

    @property
    def unvaried_share(self) -> float:
        """Share of the groups whose task rewards are all equal."""
        return self.unvaried_groups / self.groups if self.groups else 0.0

    @property
    def reward_means(self) -> Mapping[str, float]:
        """Mean of each reward for which a completion has a score."""
        return {n: self.reward_sums[n] / count for n, count in self.reward_counts.items() if count}
