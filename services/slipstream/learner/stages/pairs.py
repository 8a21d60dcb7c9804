"""Pairs of a better and a worse answer, from the groups of a round.

verifier         best against worst of a group by the rewards          iterated DPO, arXiv:2305.18290
model            best against worst by the policy's own judgement      Self-Rewarding, arXiv:2401.10020
demonstrations   the demonstration against each sampled answer         SPIN, arXiv:2401.01335

With a least distance, the two answers of a pair differ in approach, not in quality alone.

The distance of two answers is the share of their token triples that they do not have in common. See On the
resemblance and containment of documents, Broder 1997: the resemblance of two texts is the Jaccard similarity
of their sets of shingles, runs of consecutive tokens.
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
        """Distance of the two answers, 0 to 1."""
        return distance(shingles(self.chosen), shingles(self.rejected))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The pairs of a round, and the number of groups by outcome (for `demonstrations`: of answers).

    Outcomes: `pairs`; `ties` (equal scores, or no scores); `contradicted` (the verifier prefers the rejected
    answer); `identical` (equal tokens); with a least distance `alike` (below that distance).
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
    """Pair the best with the worst answer of each group; of equal ones the first. A tie gives no pair.

    scores: parallel to groups and completions; None excludes an answer.
    anchor: the name of a reward. A pair is dropped if its rejected answer has more of it than the chosen one.
    least_distance: 0 to 1. Among the pairs of a group with at least this distance, the largest difference of
        scores wins, then the largest distance.
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
    """Pair the demonstration of each prompt with each distinct answer that differs from it.

    Answers without a score are included: no score is needed. least_distance: 0 to 1; answers nearer to the
    demonstration are excluded.
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
    """Return the weighted sum of the rewards of each answer.

    None if the infrastructure failed to score it.
    """
    return [[_total(answer, weights) for answer in group.completions] for group in groups]


def check_same_prompt(group: Group, prompt: Prompt) -> None:
    """Check that a demonstration is of the prompt of the group. Errors: ValueError."""
    if prompt.prompt_id != group.prompt.prompt_id:
        raise ValueError(
            f"group {group.group_id} is of the prompt {group.prompt.prompt_id}, and its demonstration of "
            f"{prompt.prompt_id}; were data or seed changed since the round began?"
        )


def _total(answer: Completion, weights: Mapping[str, float]) -> float | None:
    if answer.withheld or not any(answer.mask):
        return None
    return sum(weights[reward.name] * reward.value for reward in answer.rewards)


def _farthest(
    scored: Sequence[tuple[float, Completion]], least: float
) -> tuple[Completion, Completion] | None:
    """Return the pair with the largest difference of scores, then distance.

    None if all are nearer than `least`.
    """
    marked = [(score, answer, shingles(answer)) for score, answer in scored]
    pairs: list[tuple[float, float, Completion, Completion]] = []
    for high, chosen, of_chosen in marked:
        for low, rejected, of_rejected in marked:
            apart = distance(of_chosen, of_rejected)
            if high > low and apart >= least:
                pairs.append((high - low, apart, chosen, rejected))
    if not pairs:
        return None
    _, _, chosen, rejected = max(pairs, key=lambda pair: pair[:2])
    return chosen, rejected


def shingles(answer: Completion) -> Shingles:
    """Return the set of runs of three consecutive sampled tokens; a shorter answer is one run."""
    ids = [token for token, own in zip(answer.token_ids, answer.mask, strict=True) if own]
    return runs(ids)


def runs(token_ids: Sequence[int]) -> Shingles:
    """Return the runs of three of a sequence of tokens.

    A shorter sequence is one run, an empty one has none.
    """
    last = max(1, len(token_ids) - SHINGLE + 1)
    return frozenset(tuple(token_ids[start : start + SHINGLE]) for start in range(last) if token_ids)


def distance(one: Shingles, other: Shingles) -> float:
    """Return 1 - |A ∩ B| / |A ∪ B|: 0 for answers with the same runs, 1 for answers without a common run.

    It is symmetric and keeps the triangle inequality. Two answers without tokens have the distance 0.
    """
    union = len(one | other)
    return 1.0 - len(one & other) / union if union else 0.0
