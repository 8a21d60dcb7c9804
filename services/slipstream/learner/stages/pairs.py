"""From the groups of a round to pairs of a better and a worse answer. Pure.

verifier         best against worst of a group by the rewards          iterated DPO, arXiv:2305.18290
model            best against worst by the policy's own judgement      Self-Rewarding, arXiv:2401.10020
demonstrations   the demonstration against each sampled answer         SPIN, arXiv:2401.01335

With a least distance, the two answers of a pair differ in how they go about it and not in quality alone.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.learner.stages.verified import score_of
from slipstream.records import Completion, Group, Prompt

SHINGLE = 3
"""Tokens of a shingle."""

Shingles = frozenset[tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferencePair:
    """Two answers to one prompt, the better one chosen."""

    group: Group
    chosen: Completion
    rejected: Completion

    @property
    def distance(self) -> float:
        """How far the two answers are apart, 0 to 1."""
        return distance(shingles(self.chosen), shingles(self.rejected))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The pairs of a round, and what became of its groups (for `demonstrations`: of its answers).

    Counted: `pairs`, `ties` (nothing to choose, or nothing scored), `contradicted` (the verifier prefers the
    rejected answer), `identical` (both are the same tokens), and with a least distance `alike` (nearer to
    each other than that).
    """

    pairs: tuple[PreferencePair, ...]
    counts: Mapping[str, int]


def pairs_by_score(
    groups: Sequence[Group],
    scores: Sequence[Sequence[float | None]],
    *,
    anchor: str | None = None,
    least_distance: float | None = None,
) -> Pairs:
    """The best against the worst answer of each group; of equal ones the first. A tie gives no pair.

    `scores` run parallel to groups and completions, None for an answer that must not take part. With an
    `anchor`, the name of a reward, a pair whose rejected answer has more of it than the chosen one is
    dropped. With a `least_distance`, 0 to 1, a group's pair is the one of the largest difference of scores
    among those at least that far apart, and of equal differences the one farthest apart.
    """
    pairs: list[PreferencePair] = []
    counts: Counter[str] = Counter(pairs=0, ties=0, contradicted=0, identical=0)
    if least_distance is not None:
        counts["alike"] = 0
    for group, of_group in zip(groups, scores, strict=True):
        scored = [(s, c) for s, c in zip(of_group, group.completions, strict=True) if s is not None]
        best = max(scored, key=lambda pair: pair[0], default=None)
        worst = min(scored, key=lambda pair: pair[0], default=None)
        if best is None or worst is None or not best[0] > worst[0]:
            counts["ties"] += 1
            continue
        chosen, rejected = best[1], worst[1]
        if least_distance is not None:
            apart = _farthest(scored, least_distance)
            if apart is None:
                counts["alike"] += 1
                continue
            chosen, rejected = apart
        if chosen.token_ids == rejected.token_ids:
            counts["identical"] += 1
        elif anchor is not None and score_of(chosen, anchor) < score_of(rejected, anchor):
            counts["contradicted"] += 1
        else:
            counts["pairs"] += 1
            pairs.append(PreferencePair(group=group, chosen=chosen, rejected=rejected))
    return Pairs(pairs=tuple(pairs), counts=counts)


def pairs_with_demonstrations(
    groups: Sequence[Group],
    demonstration: Callable[[Group], Completion],
    *,
    least_distance: float | None = None,
) -> Pairs:
    """The demonstration of each prompt against each distinct answer to it that is another one.

    An answer without a score takes part: nobody has to judge it. With a `least_distance`, 0 to 1, answers
    that are nearer to the demonstration take no part.
    """
    pairs: list[PreferencePair] = []
    counts: Counter[str] = Counter(pairs=0, identical=0)
    if least_distance is not None:
        counts["alike"] = 0
    for group in groups:
        chosen = demonstration(group)
        seen = {chosen.token_ids}
        for answer in group.completions:
            if answer.token_ids in seen or not any(answer.mask):
                counts["identical"] += 1
                continue
            seen.add(answer.token_ids)
            pair = PreferencePair(group=group, chosen=chosen, rejected=answer)
            if least_distance is not None and pair.distance < least_distance:
                counts["alike"] += 1
                continue
            counts["pairs"] += 1
            pairs.append(pair)
    return Pairs(pairs=tuple(pairs), counts=counts)


def verified_scores(groups: Sequence[Group], weights: Mapping[str, float]) -> list[list[float | None]]:
    """The weighted sum of the rewards of each answer; None where the infrastructure failed to score it."""
    return [[_total(answer, weights) for answer in group.completions] for group in groups]


def check_same_prompt(group: Group, asked: Prompt) -> None:
    """Errors: ValueError when a demonstration is of another prompt than the group."""
    if asked.prompt_id != group.prompt.prompt_id:
        raise ValueError(
            f"group {group.group_id} is of the prompt {group.prompt.prompt_id}, and its demonstration of "
            f"{asked.prompt_id}; were data or seed changed since the round began?"
        )


def _total(answer: Completion, weights: Mapping[str, float]) -> float | None:
    if answer.withheld or not any(answer.mask):
        return None
    return sum(weights[reward.name] * reward.value for reward in answer.rewards)


def _farthest(
    scored: Sequence[tuple[float, Completion]], least: float
) -> tuple[Completion, Completion] | None:
    """The pair by the difference of scores, then by the distance; None when all are nearer than `least`."""
    marked = [(score, answer, shingles(answer)) for score, answer in scored]
    found: list[tuple[float, float, Completion, Completion]] = []
    for high, chosen, of_chosen in marked:
        for low, rejected, of_rejected in marked:
            apart = distance(of_chosen, of_rejected)
            if high > low and apart >= least:
                found.append((high - low, apart, chosen, rejected))
    if not found:
        return None
    _, _, chosen, rejected = max(found, key=lambda pair: pair[:2])
    return chosen, rejected


def shingles(answer: Completion) -> Shingles:
    """Each run of three consecutive tokens that the policy wrote, once; a shorter answer is one run."""
    ids = [token for token, own in zip(answer.token_ids, answer.mask, strict=True) if own]
    return runs(ids)


def runs(token_ids: Sequence[int]) -> Shingles:
    """The runs of three of a sequence of tokens; of a shorter one the whole; none where there is no token."""
    last = max(1, len(token_ids) - SHINGLE + 1)
    return frozenset(tuple(token_ids[start : start + SHINGLE]) for start in range(last) if token_ids)


def distance(one: Shingles, other: Shingles) -> float:
    """1 - |A ∩ B| / |A ∪ B|: 0 for answers with the same runs, 1 for answers without a common one.

    It is symmetric and keeps the triangle inequality. Two answers without tokens have the distance 0.
    """
    union = len(one | other)
    return 1.0 - len(one & other) / union if union else 0.0
