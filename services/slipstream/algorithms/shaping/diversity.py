"""Diversity of the completions of a prompt, which falls when a policy collapses onto one answer."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from slipstream.algorithms.shaping.dynamic_sampling import has_variance

NO_VARIANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSample:
    """One group: sampled token ids and text of each completion, and the task rewards of those scored."""

    token_ids: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    task_rewards: tuple[float, ...]


def diversity(groups_P: Sequence[GroupSample]) -> dict[str, float]:
    """Return each of METRICS as its mean over the groups where it is defined; NaN where it is nowhere."""
    return {name: _mean([metric(group) for group in groups_P]) for name, metric in METRICS.items()}


def distinct_n(token_ids_G: Sequence[Sequence[int]], n: int) -> float:
    """Different n-grams of a group over all of its n-grams, in (0, 1]; NaN when all completions are shorter.

    See A Diversity-Promoting Objective Function for Neural Conversation Models, arXiv:1510.03055.
    """
    different: set[tuple[int, ...]] = set()
    total = 0
    for ids in token_ids_G:
        grams = list(zip(*(ids[start:] for start in range(n)), strict=False))
        different.update(grams)
        total += len(grams)
    return len(different) / total if total else math.nan


def duplicate_share(token_ids_G: Sequence[Sequence[int]]) -> float:
    """Share of a group's completions that repeat an earlier one token by token, in [0, 1); NaN for none."""
    if not token_ids_G:
        return math.nan
    return 1.0 - len({tuple(ids) for ids in token_ids_G}) / len(token_ids_G)


def answer_cluster_count(texts_G: Sequence[str]) -> float:
    """How many different answers a group holds; case and white space do not count. NaN for none."""
    return float(len({" ".join(text.casefold().split()) for text in texts_G})) if texts_G else math.nan


def reward_std(task_rewards_G: Sequence[float]) -> float:
    """Standard deviation (ddof 1) of a group's task rewards; NaN for fewer than two."""
    return stdev(task_rewards_G) if len(task_rewards_G) > 1 else math.nan


def zero_variance(task_rewards_G: Sequence[float]) -> float:
    """1 for a group whose task rewards are equal, else 0; NaN without rewards. Its mean is a share."""
    return float(not has_variance(task_rewards_G, NO_VARIANCE)) if task_rewards_G else math.nan


METRICS: Mapping[str, Callable[[GroupSample], float]] = {
    "distinct_1": lambda group: distinct_n(group.token_ids, 1),
    "distinct_2": lambda group: distinct_n(group.token_ids, 2),
    "distinct_3": lambda group: distinct_n(group.token_ids, 3),
    "duplicate_share": lambda group: duplicate_share(group.token_ids),
    "answer_cluster_count": lambda group: answer_cluster_count(group.texts),
    "reward_std": lambda group: reward_std(group.task_rewards),
    "zero_variance_share": lambda group: zero_variance(group.task_rewards),
}
"""The metrics by name, each of one group."""


def _mean(values: Sequence[float]) -> float:
    numbers = [value for value in values if not math.isnan(value)]
    return fmean(numbers) if numbers else math.nan
