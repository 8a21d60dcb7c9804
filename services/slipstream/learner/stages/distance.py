"""How far two answers are apart: the share of their token triples that they do not have in common.

See On the resemblance and containment of documents, Broder 1997: the resemblance of two texts is the Jaccard
similarity of their sets of shingles, runs of consecutive tokens.
"""

from collections.abc import Sequence

from slipstream.records import Completion

SHINGLE = 3
"""Tokens of a shingle."""

Shingles = frozenset[tuple[int, ...]]


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
