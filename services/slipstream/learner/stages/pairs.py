"""From the groups of a round to pairs of a better and a worse answer. Pure.

verifier         best against worst of a group by the rewards          iterated DPO, arXiv:2305.18290
model            best against worst by the policy's own judgement      Self-Rewarding, arXiv:2401.10020
demonstrations   the demonstration against each sampled answer         SPIN, arXiv:2401.01335
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.learner.stages.verified import score_of
from slipstream.types import Completion, Group, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferencePair:
    """Two answers to one prompt, the better one chosen."""

    group: Group
    chosen: Completion
    rejected: Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The pairs of a round, and what became of its groups (for `demonstrations`: of its answers).

    Counted: `pairs`, `ties` (nothing to choose, or nothing scored), `contradicted` (the verifier prefers the
    rejected answer), `identical` (both are the same tokens).
    """

    pairs: tuple[PreferencePair, ...]
    counts: Mapping[str, int]


def pairs_by_score(
    groups: Sequence[Group],
    scores: Sequence[Sequence[float | None]],
    *,
    anchor: str | None = None,
) -> Pairs:
    """The best against the worst answer of each group; of equal ones the first. A tie gives no pair.

    `scores` run parallel to groups and completions, None for an answer that must not take part. With an
    `anchor`, the name of a reward, a pair whose rejected answer has more of it than the chosen one is
    dropped.
    """
    pairs: list[PreferencePair] = []
    counts: Counter[str] = Counter(pairs=0, ties=0, contradicted=0, identical=0)
    for group, of_group in zip(groups, scores, strict=True):
        scored = [(s, c) for s, c in zip(of_group, group.completions, strict=True) if s is not None]
        best = max(scored, key=lambda pair: pair[0], default=None)
        worst = min(scored, key=lambda pair: pair[0], default=None)
        if best is None or worst is None or not best[0] > worst[0]:
            counts["ties"] += 1
        elif best[1].token_ids == worst[1].token_ids:
            counts["identical"] += 1
        elif anchor is not None and score_of(best[1], anchor) < score_of(worst[1], anchor):
            counts["contradicted"] += 1
        else:
            counts["pairs"] += 1
            pairs.append(PreferencePair(group=group, chosen=best[1], rejected=worst[1]))
    return Pairs(pairs=tuple(pairs), counts=counts)


def pairs_with_demonstrations(groups: Sequence[Group], demonstration: Callable[[Group], Completion]) -> Pairs:
    """The demonstration of each prompt against each distinct answer to it that is another one.

    An answer without a score takes part: nobody has to judge it.
    """
    pairs: list[PreferencePair] = []
    counts: Counter[str] = Counter(pairs=0, identical=0)
    for group in groups:
        chosen = demonstration(group)
        seen = {chosen.token_ids}
        for answer in group.completions:
            if answer.token_ids in seen or not any(answer.mask):
                counts["identical"] += 1
                continue
            seen.add(answer.token_ids)
            counts["pairs"] += 1
            pairs.append(PreferencePair(group=group, chosen=chosen, rejected=answer))
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
