"""Sequences into rows of bounded length, without padding, as many for every rank."""

import heapq
from collections.abc import Sequence

from slipstream.learner.batches.batch import TrainingSequence


def without_too_long(
    sequences: Sequence[TrainingSequence], max_tokens: int
) -> tuple[list[TrainingSequence], int]:
    """Those that fit into a row, and how many do not: a row of theirs would take memory that is not there."""
    fitting = [sequence for sequence in sequences if sequence.length <= max_tokens]
    return fitting, len(sequences) - len(fitting)


def pack(
    sequences: Sequence[TrainingSequence],
    *,
    max_tokens: int,
    share_prompts: bool = False,
    ranks: int = 1,
    enough: int | None = None,
) -> list[list[TrainingSequence]]:
    """First-fit-decreasing into rows of at most `max_tokens`, of which every rank gets as many.

    `enough` tokens make a row that is not worth filling further, where attention costs the square of a row:
    only a sequence that is longer makes its row longer.
    With `share_prompts` what is packed are bundles of a group's sequences, whose prompt counts once. For
    several ranks the rows, a multiple of their number, are made about equally long, longest first; some may
    be empty. No sequence may be longer than a row.
    """
    capacity = max_tokens if enough is None else min(enough, max_tokens)
    bundles = _bundles(sequences, capacity) if share_prompts else [[sequence] for sequence in sequences]
    bundles.sort(key=lambda b: -_bundle_length(b))
    rows = _first_fit(bundles, capacity)
    if ranks == 1 or not rows:
        return rows
    count, even = -(-len(rows) // ranks) * ranks, None
    while (even := _even(bundles, max_tokens, count)) is None:
        count += ranks
    return sorted(even, key=lambda row: -sum(s.length for s in row))


def _first_fit(bundles: Sequence[list[TrainingSequence]], capacity: int) -> list[list[TrainingSequence]]:
    """Rows of a capacity; a longer bundle gets a row of its own."""
    rows: list[list[TrainingSequence]] = []
    free: list[int] = []
    for bundle in bundles:
        length = _bundle_length(bundle)
        place = next((i for i, room in enumerate(free) if room >= length), None)
        if place is None:
            place = len(rows)
            rows.append([])
            free.append(capacity)
        rows[place] += bundle
        free[place] -= length
    return rows


def _even(
    bundles: Sequence[list[TrainingSequence]], max_tokens: int, count: int
) -> list[list[TrainingSequence]] | None:
    """`count` rows, each bundle into the shortest; None when one does not fit there."""
    rows: list[list[TrainingSequence]] = [[] for _ in range(count)]
    shortest = [(0, place) for place in range(count)]
    for bundle in bundles:
        length, place = heapq.heappop(shortest)
        length += _bundle_length(bundle)
        if length > max_tokens:
            return None
        rows[place] += bundle
        heapq.heappush(shortest, (length, place))
    return rows


def _bundles(sequences: Sequence[TrainingSequence], max_tokens: int) -> list[list[TrainingSequence]]:
    """The sequences by group, a group in as many bundles as its completions need rows."""
    bundles: list[list[TrainingSequence]] = []
    for sequence in sorted(sequences, key=lambda s: s.group):
        last = bundles[-1] if bundles else None
        fits = last is not None and _bundle_length([*last, sequence]) <= max_tokens
        if last is not None and fits and last[0].group == sequence.group:
            last.append(sequence)
        else:
            bundles.append([sequence])
    return bundles


def _bundle_length(bundle: Sequence[TrainingSequence]) -> int:
    """Tokens of a bundle: its prompt once, and every completion."""
    return len(bundle[0].prompt_token_ids) + sum(len(s.completion.token_ids) for s in bundle)
