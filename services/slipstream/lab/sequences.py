"""A stored batch as the sequences that the learner packs into rows."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

import numpy as np

from slipstream.algorithms import Counts
from slipstream.learner.batches.batch import TrainingSequence, sampled_tokens
from slipstream.records import FinishReason, Segment, VersionSpan
from slipstream.samples.reader import Row


def training_sequences(rows: Sequence[Row]) -> list[TrainingSequence]:
    """Return the segments of completions that trained.

    `order` numbers the sampled tokens of all sequences, in the order of the stored rows.
    """
    groups = {name: index for index, name in enumerate(dict.fromkeys(row["group"] for row in rows))}
    sequences, tokens = [], 0
    for place, row in enumerate(rows):
        for prompt, segment in _segments(row):
            sampled = sum(segment.mask)
            sequences.append(
                TrainingSequence(
                    prompt_token_ids=prompt,
                    segment=segment,
                    place=place,
                    group=groups[row["group"]],
                    order=range(tokens, tokens + sampled),
                )
            )
            tokens += sampled
    return sequences


def count(sequences: Sequence[TrainingSequence]) -> Counts:
    """Return the counts by which a loss is divided if these sequences are its minibatch."""
    totals = sampled_tokens(sequences)
    return Counts(tokens=totals.total, sequences=len(totals.by_completion), prompts=len(totals.by_group))


def _segments(row: Row) -> Iterator[tuple[tuple[int, ...], Segment]]:
    """Yield prompt and tokens of each segment that trained; its mask has the tokens with a loss."""
    trained = np.isfinite(np.array(row["logprobs"], np.float64)).astype(int).tolist()
    bounds = pairwise([*row["segment_starts"], len(row["token_ids"])])
    for (start, end), prompt in zip(bounds, row["segment_prompts"], strict=True):
        if not any(trained[start:end]):
            continue
        segment = Segment(
            token_ids=tuple(row["token_ids"][start:end]),
            logprobs=tuple(row["rollout_logprobs"][start:end]),
            mask=tuple(trained[start:end]),
            spans=_spans(row["versions"][start:end]),
            finish_reason=FinishReason.STOP,
        )
        yield tuple(row["prompt_token_ids"] if prompt is None else prompt), segment


def _spans(versions: Sequence[int]) -> tuple[VersionSpan, ...]:
    spans, start = [], 0
    for version, tokens in groupby(versions):
        end = start + sum(1 for _ in tokens)
        spans.append(VersionSpan(version=version, start=start, end=end))
        start = end
    return tuple(spans)
