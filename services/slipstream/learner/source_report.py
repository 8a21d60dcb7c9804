"""The numbers of a step by source of a mixture: rows of metrics.jsonl, and gauges."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.records import Completion, FinishReason, Generated, Group
from slipstream.telemetry.metrics import Metrics

Means = Mapping[str, float]
Row = dict[str, Any]


def of_sources(groups: Sequence[Group], generated: Generated, weights: Mapping[str, float]) -> dict[str, Row]:
    """Return the row of each source in the batch or among the generated groups; none without a mixture.

    `rewards` are means over the groups that were generated since the step before, or of the batch if there
    are none. A reward that does not apply to a source is not in its row.
    """
    names = {group.prompt.source for group in groups if group.prompt.source} | set(generated.by_source)
    return {
        name: _row(
            [group for group in groups if group.prompt.source == name],
            generated.by_source.get(name, Generated()),
            weights,
        )
        for name in sorted(names)
    }


def reward_means(completions: Sequence[Completion]) -> dict[str, float]:
    """Return the mean of each reward over the completions that have it."""
    values: dict[str, list[float]] = {}
    for completion in completions:
        for reward in completion.rewards:
            values.setdefault(reward.name, []).append(reward.value)
    return {name: sum(of_name) / len(of_name) for name, of_name in values.items()}


def mean_generated(generated: Generated, weights: Mapping[str, float]) -> float:
    """Return the mean over the generated completions of the weighted rewards that apply to each."""
    parts = list(generated.by_source.values()) or [generated]
    return _mean_total(
        [(part.reward_means, max(part.reward_counts.values(), default=0)) for part in parts], weights
    )


def mean_trained(groups: Sequence[Group], weights: Mapping[str, float]) -> float:
    """Return the same mean of the scored completions of a batch."""
    by_source: dict[str, list[Completion]] = {}
    for group in groups:
        by_source.setdefault(group.prompt.source, []).extend(scored([group]))
    return _mean_total([(reward_means(part), len(part)) for part in by_source.values()], weights)


def scored(groups: Sequence[Group]) -> list[Completion]:
    """Return the completions that are not withheld."""
    return [completion for group in groups for completion in group.completions if not completion.withheld]


def observe_sources(metrics: Metrics, rows: Mapping[str, Row]) -> None:
    """Set the metrics of a step by source. The names of sources are those of the configuration."""
    for name, row in rows.items():
        for kind in ("generated", "trained"):
            metrics.count("source_groups_total", row[f"groups_{kind}"], source=name, kind=kind)
        for reward, mean in row["rewards"].items():
            metrics.set("source_reward_mean", mean, source=name, reward=reward)
        metrics.set("source_unvaried_share", row["unvaried_share"], source=name)
        metrics.set("source_truncated_share", row["truncated_fraction"], source=name)


def _row(groups: Sequence[Group], generated: Generated, weights: Mapping[str, float]) -> Row:
    completions = scored(groups)
    means = dict(generated.reward_means) if generated.groups else reward_means(completions)
    cut = [completion.finish_reason is FinishReason.LENGTH for completion in completions]
    return {
        "groups_generated": generated.groups,
        "groups_trained": len(groups),
        "reward_mean": _weighted(means, weights) if means else math.nan,
        "rewards": means,
        "unvaried_share": generated.unvaried_share if generated.groups else math.nan,
        "truncated_fraction": sum(cut) / len(cut) if cut else math.nan,
    }


def _mean_total(parts: Sequence[tuple[Means, int]], weights: Mapping[str, float]) -> float:
    """Return the mean of the weighted totals of parts, each with the number of its completions."""
    if len(parts) == 1:
        return _weighted(parts[0][0], weights)
    number = sum(size for _, size in parts)
    return sum(size * _weighted(means, weights) for means, size in parts) / number if number else 0.0


def _weighted(means: Means, weights: Mapping[str, float]) -> float:
    return sum(weights[name] * mean for name, mean in means.items())
