"""Packing of sequences into rows of bounded length, without padding, equally many for each rank."""

import heapq
from collections.abc import Sequence

from slipstream.learner.batches.batch import TrainingSequence, same_prompt


def without_too_long(
    sequences: Sequence[TrainingSequence], max_tokens: int
) -> tuple[list[TrainingSequence], int]:
    """Return the sequences that fit into a row, and the number of those that do not."""
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
    """Pack first-fit-decreasing into rows of at most `max_tokens`, equally many for each rank.

    enough: tokens above which a row is not filled further, because attention costs the square of a row. Only
        a longer sequence makes its row longer.
    share_prompts: pack bundles of a group's sequences that follow the same prompt, which counts once.
    ranks: the number of rows is a multiple of it. With several ranks the rows are about equally long, longest
        first, and some may be empty.
    No sequence may be longer than a row.
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
    """Return rows of at most `capacity` tokens; a longer bundle gets a row of its own."""
    rows: list[list[TrainingSequence]] = []
    free: list[int] = []
    for bundle in bundles:
        length = _bundle_length(bundle)
        place = next((i for i, tokens in enumerate(free) if tokens >= length), None)
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
    """Return `count` rows, with each bundle in the shortest row; None if a bundle does not fit."""
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
    """Return bundles of sequences of one group and one prompt, each of at most `max_tokens`."""
    bundles: list[list[TrainingSequence]] = []
    for sequence in sorted(sequences, key=lambda s: (s.group, s.prompt_token_ids)):
        last = bundles[-1] if bundles else None
        fits = last is not None and _bundle_length([*last, sequence]) <= max_tokens
        if last is not None and fits and same_prompt(last[0], sequence):
            last.append(sequence)
        else:
            bundles.append([sequence])
    return bundles


def _bundle_length(bundle: Sequence[TrainingSequence]) -> int:
    """Return the tokens of a bundle: its prompt once, and each segment."""
    return len(bundle[0].prompt_token_ids) + sum(len(s.segment.token_ids) for s in bundle)
