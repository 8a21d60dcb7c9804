"""The order in which the tokens of a completion of several segments were sampled."""

from collections.abc import Iterator, Sequence

from slipstream.records.completion import Completion


def sampling_order(completion: Completion) -> list[Sequence[int]]:
    """Return for each segment the index of each of its sampled tokens among all sampled tokens of the
    completion, in the order of sampling.

    A turn of one segment may lie between two turns of another. Segments without turns follow one another.
    """
    order: list[list[int]] = [[] for _ in completion.segments]
    position = 0
    for _, segment, sampled in sorted(_turns(completion)):
        order[segment] += range(position, position + sampled)
        position += sampled
    return list(order)


def _turns(completion: Completion) -> Iterator[tuple[int, int, int]]:
    """Yield number, segment and sampled tokens of each turn, and of what is left behind the last turns."""
    after_all = 1 + max((t.number for s in completion.segments for t in s.turn_ends), default=0)
    for index, segment in enumerate(completion.segments):
        start = 0
        for turn in segment.turn_ends:
            yield turn.number, index, sum(segment.mask[start : turn.token_end])
            start = turn.token_end
        yield after_all, index, sum(segment.mask[start:])
