"""Slow reference implementations of all advantages: loops over Python floats, written from the formulas.

Shares no code and no shortcut with slipstream.algorithms.advantages, so that the two can disagree.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

EQUAL = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One batch; rewards[i] are the components of completion i."""

    rewards: Sequence[Sequence[float]]
    groups: Sequence[int]
    weights: Sequence[float]
    lengths: Sequence[float]
    baselines: Sequence[float]

    def totals(self) -> list[float]:
        return [sum(w * r for w, r in zip(self.weights, row, strict=True)) for row in self.rewards]

    def scored_peers(self, i: int, rewards: Sequence[float]) -> list[int]:
        """Members of the group of i, itself included, whose reward is known."""
        return [
            j for j, group in enumerate(self.groups) if group == self.groups[i] and not math.isnan(rewards[j])
        ]


def reference(spec: Any, case: Case) -> list[float]:
    """The advantages that group_advantages ought to give."""
    return BY_KIND[spec.kind](spec, case)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def std(values: Sequence[float], ddof: int) -> float:
    middle = mean(values)
    return math.sqrt(sum((v - middle) ** 2 for v in values) / max(len(values) - ddof, 1))


def equal(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= EQUAL


def in_group(case: Case, rewards: Sequence[float], formula: Callable[[int, list[int]], float]) -> list[float]:
    """formula(i, scored peers); 0 where i is withheld, the only scored one, or in a group of equals."""
    result = []
    for i, reward in enumerate(rewards):
        peers = case.scored_peers(i, rewards)
        idle = math.isnan(reward) or len(peers) < 2 or equal([rewards[j] for j in peers])
        result.append(0.0 if idle else formula(i, peers))
    return result


def compared(case: Case, rewards: Sequence[float]) -> list[int]:
    """Completions of the batch that are scored and not the only scored one of their group."""
    return [i for i, r in enumerate(rewards) if not math.isnan(r) and len(case.scored_peers(i, rewards)) > 1]


def whiten(
    values: Sequence[float], counted: Sequence[int], counts: Sequence[float], eps: float
) -> list[float]:
    """(value - mean) / (std + eps) over the counted ones, each counts[i] times, ddof 1; 0 for the others."""
    counted = [i for i in counted if counts[i] > 0]
    result = [0.0] * len(values)
    if not counted or equal([values[i] for i in counted]):
        return result
    total = sum(counts[i] for i in counted)
    middle = sum(counts[i] * values[i] for i in counted) / total
    variance = sum(counts[i] * (values[i] - middle) ** 2 for i in counted) / max(total - 1, 1)
    for i in counted:
        result[i] = (values[i] - middle) / (math.sqrt(variance) + eps)
    return result


def grpo_of(case: Case, rewards: Sequence[float], ddof: int, eps: float) -> list[float]:
    def formula(i: int, peers: list[int]) -> float:
        group = [rewards[j] for j in peers]
        return (rewards[i] - mean(group)) / (std(group, ddof) + eps)

    return in_group(case, rewards, formula)


def grpo(spec: Any, case: Case) -> list[float]:
    return grpo_of(case, case.totals(), spec.ddof, spec.epsilon)


def dr_grpo(spec: Any, case: Case) -> list[float]:
    r = case.totals()
    return in_group(case, r, lambda i, peers: r[i] - mean([r[j] for j in peers]))


def rloo(spec: Any, case: Case) -> list[float]:
    r = case.totals()

    def formula(i: int, peers: list[int]) -> float:
        spread = std([r[j] for j in peers], 1) + 1e-6 if spec.scale == "group" else 1.0
        return (r[i] - mean([r[j] for j in peers if j != i])) / spread

    return in_group(case, r, formula)


def maxrl(spec: Any, case: Case) -> list[float]:
    r = case.totals()

    def formula(i: int, peers: list[int]) -> float:
        middle = mean([r[j] for j in peers])
        return (r[i] - middle) / middle if middle > EQUAL else 0.0

    return in_group(case, r, formula)


def opo(spec: Any, case: Case) -> list[float]:
    r, lengths = case.totals(), case.lengths

    def formula(i: int, peers: list[int]) -> float:
        tokens = sum(lengths[j] for j in peers)
        return r[i] - sum(lengths[j] * r[j] for j in peers) / tokens if tokens else 0.0

    return in_group(case, r, formula)


def gopo(spec: Any, case: Case) -> list[float]:
    r = case.totals()
    result = []
    for i, reward in enumerate(r):
        peers = case.scored_peers(i, r)
        if math.isnan(reward) or len(peers) < 2:
            result.append(0.0)
            continue
        ahead = sum(r[j] > reward for j in peers)
        tied = [j for j in peers if r[j] == reward]
        if spec.mapping == "quantile":
            normal, size = NormalDist(), len(peers)
            score = [normal.inv_cdf((size + 0.625 - rank) / (size + 0.25)) for rank in range(1, size + 1)]
            own = score[ahead : ahead + len(tied)]
            chosen = mean(own) if spec.ties == "average" else own[tied.index(i)]
            result.append(spec.high * chosen / score[0])
            continue
        rank = ahead + ((len(tied) + 1) / 2 if spec.ties == "average" else tied.index(i) + 1)
        result.append(spec.high - (rank - 1) * (spec.high + spec.high) / (len(peers) - 1))
    return result


def batch_scaled(spec: Any, case: Case) -> list[float]:
    r = case.totals()
    counted = compared(case, r)
    if not counted:
        return [0.0] * len(r)
    everyone = [r[i] for i in counted]
    if spec.center == "batch":
        flat = equal(everyone)
        centred = [0.0 if flat or i not in counted else r[i] - mean(everyone) for i in range(len(r))]
    else:
        centred = dr_grpo(spec, case)
    divisor = std([centred[i] for i in counted] if spec.std_of == "centred" else everyone, 1)
    return [value / (divisor + spec.epsilon) for value in centred]


def reinforce_pp(spec: Any, case: Case) -> list[float]:
    r = case.totals()
    a = dr_grpo(spec, case) if spec.group_mean else r
    counted = compared(case, r) if spec.group_mean else [i for i, v in enumerate(r) if not math.isnan(v)]
    counts = case.lengths if spec.weighting == "token" else [1.0] * len(r)
    return whiten(a, counted, counts, spec.epsilon)


def gdpo(spec: Any, case: Case) -> list[float]:
    columns = list(zip(*case.rewards, strict=True))
    parts = [grpo_of(case, column, spec.ddof, spec.epsilon) for column in columns]
    total = [sum(w * a for w, a in zip(case.weights, row, strict=True)) for row in zip(*parts, strict=True)]
    counted = sorted({i for column in columns for i in compared(case, column)})
    return whiten(total, counted, [1.0] * len(total), spec.epsilon) if spec.final_batch_norm else total


def ema(spec: Any, case: Case) -> list[float]:
    return [0.0 if math.isnan(r) else r - b for r, b in zip(case.totals(), case.baselines, strict=True)]


def mixed(spec: Any, case: Case) -> list[float]:
    r = case.totals()
    result = []
    for i, reward in enumerate(r):
        others = [r[j] for j in case.scored_peers(i, r) if j != i]
        if math.isnan(reward) or not others:
            result.append(0.0)
            continue
        lam = spec.lam if spec.prior is None else len(others) / (len(others) + spec.prior)
        result.append(reward - (lam * mean(others) + (1 - lam) * case.baselines[i]))
    return result


BY_KIND: dict[str, Callable[[Any, Case], list[float]]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "maxrl": maxrl,
    "opo": opo,
    "gopo": gopo,
    "batch_scaled": batch_scaled,
    "reinforce_pp": reinforce_pp,
    "gdpo": gdpo,
    "ema": ema,
    "mixed": mixed,
}
