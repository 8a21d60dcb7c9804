"""The chunks of a request become its turn, wherever they were cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from slipstream.records import Chunk, FinishReason, TopLogprobs, Turn, VersionSpan, chunk_since
from slipstream.rpc.sampling_codec import chunk_to_proto, chunks_from_proto


def turn(versions: list[int], *, top_k: int) -> Turn:
    """Return a turn with one token for each version."""
    starts = [n for n in range(len(versions)) if n == 0 or versions[n] != versions[n - 1]]
    ends = [*starts[1:], len(versions)]
    ids = b"".join(n.to_bytes(4, "little") for n in range(top_k * len(versions)))
    return Turn(
        token_ids=tuple(range(100, 100 + len(versions))),
        logprobs=tuple(-n / 4 for n in range(len(versions))),
        spans=tuple(
            VersionSpan(version=versions[start], start=start, end=end)
            for start, end in zip(starts, ends, strict=True)
        ),
        top_logprobs=TopLogprobs(top_k=top_k, ids=ids, logprobs=bytes(len(ids))) if top_k else None,
        finish_reason=FinishReason.STOP,
    )


def upto(chunk: Chunk, end: int) -> Chunk:
    """Return the first tokens of a chunk."""
    top = chunk.top_logprobs
    size = 4 * top.top_k * end if top else 0
    return Chunk(
        token_ids=chunk.token_ids[:end],
        logprobs=chunk.logprobs[:end],
        spans=tuple(
            VersionSpan(version=span.version, start=span.start, end=min(span.end, end))
            for span in chunk.spans
            if span.start < end
        ),
        top_logprobs=top and TopLogprobs(top_k=top.top_k, ids=top.ids[:size], logprobs=top.logprobs[:size]),
    )


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=9), st.sets(st.integers(1, 8)), st.sampled_from([0, 2])
)
def test_the_chunks_of_a_turn_are_the_turn_wherever_it_was_cut(
    versions: list[int], cuts: set[int], top_k: int
) -> None:
    full_turn = turn(versions, top_k=top_k)
    starts = [0, *sorted(cut for cut in cuts if cut < len(versions))]
    chunks = [upto(chunk_since(full_turn, start), end - start) for start, end in pairwise(starts)]
    messages = [chunk_to_proto(7, chunk) for chunk in chunks]
    so_far = chunks_from_proto(messages)
    assert not isinstance(so_far, Turn)
    assert so_far == (upto(full_turn, starts[-1]) if messages else Chunk())
    assert chunks_from_proto([*messages, chunk_to_proto(7, full_turn.since(starts[-1]))]) == full_turn
