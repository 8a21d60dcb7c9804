"""Weights of equal completions of one prompt."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal


def duplicate_weights(
    contents_G: Sequence[Sequence[object]], how: Literal["keep", "drop", "share"]
) -> list[float]:
    """Return the factor of each completion's advantage in one group, by its exact content.

    contents_G: of each completion what makes it equal to another, such as its token ids.
    keep: 1 for all. drop: 1 for the first of equal ones, 0 for the others. share: 1 / how many are equal.
    Errors: ValueError for another value of `how`.
    """
    sequences = [tuple(content) for content in contents_G]
    if how == "keep":
        return [1.0] * len(sequences)
    if how == "drop":
        first = {ids: place for place, ids in reversed(list(enumerate(sequences)))}
        return [float(first[ids] == place) for place, ids in enumerate(sequences)]
    if how == "share":
        counts = Counter(sequences)
        return [1.0 / counts[ids] for ids in sequences]
    raise ValueError(f"duplicates: got {how!r}, needs 'keep', 'drop' or 'share'")
