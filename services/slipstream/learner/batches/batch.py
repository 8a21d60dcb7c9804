"""The sequences of a batch that train, and their minibatches.

A sequence is one segment of a completion after its own prompt. A completion of several segments has several
sequences; the baseline, the counts and the mean over sequences count it once.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.algorithms.shaping.duplicates import duplicate_weights
from slipstream.algorithms.spec import Shaping
from slipstream.records import Completion, FinishReason, Group, Segment, sampling_order


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence:
    """A segment of a completion that trains, after its prompt."""

    prompt_token_ids: tuple[int, ...]
    segment: Segment
    place: int
    """Index of the completion among all completions of the batch, in order. Its segments share it."""
    group: int
    share: float = 1.0
    """Factor of its advantage: below 1 if duplicate answers share one."""
    order: Sequence[int] | None = None
    """Index of each sampled token among all sampled tokens of the completion, in the order of sampling; None
    for a completion of one segment."""

    @property
    def length(self) -> int:
        """Number of tokens of prompt and segment."""
        return len(self.prompt_token_ids) + len(self.segment.token_ids)

    @property
    def sampled(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(self.segment.mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """Numbers of sampled tokens over all sequences of a minibatch."""

    by_group: Mapping[int, int]
    by_completion: Mapping[int, int]
    """By place: a completion of several segments has those of all that train."""

    @property
    def total(self) -> int:
        """Of the minibatch."""
        return sum(self.by_group.values())


def make_sequences(groups: Sequence[Group], shaping: Shaping) -> list[TrainingSequence]:
    """Return the segments to train on: those of the completions to train on that have sampled tokens.

    The loss and its counts leave out withheld completions (no reward), those that the overlong filter
    removes, and repeated answers if duplicates are dropped. Each of these removes all segments of a
    completion. Two completions are equal if all their segments are.
    """
    sequences: list[TrainingSequence] = []
    place = 0
    for index, group in enumerate(groups):
        members = [(place + i, c) for i, c in enumerate(group.completions) if _trains(c, shaping)]
        shares = duplicate_weights([c.content for _, c in members], shaping.duplicates)
        sequences += [
            TrainingSequence(
                prompt_token_ids=group.prompt_of(segment),
                segment=segment,
                place=where,
                group=index,
                share=share,
                order=order,
            )
            for (where, completion), share in zip(members, shares, strict=True)
            for segment, order in zip(completion.segments, sampling_order(completion), strict=True)
            if share and any(segment.mask)
        ]
        place += len(group.completions)
    return sequences


def _trains(completion: Completion, shaping: Shaping) -> bool:
    overlong = completion.finish_reason is FinishReason.LENGTH and shaping.overlong_filter is not None
    return not completion.withheld and completion.sampled > 0 and not overlong


def split(sequences: Sequence[TrainingSequence], parts: int) -> list[list[TrainingSequence]]:
    """Return minibatches of whole groups, in order. None is empty unless there are no sequences.

    Replay hands groups out with the oldest prompt first, and they are not shuffled. So the updates within a
    step, which add to the age of later minibatches, fall on the youngest groups.
    """
    names = sorted({sequence.group for sequence in sequences})
    if not names:
        return [[]]
    part_of = {name: index * parts // len(names) for index, name in enumerate(names)}
    split = [[s for s in sequences if part_of[s.group] == part] for part in range(parts)]
    return [part for part in split if part]


def same_prompt(one: TrainingSequence, other: TrainingSequence) -> bool:
    """Return whether two sequences are of one group, and follow equal prompts."""
    return one.group == other.group and one.prompt_token_ids == other.prompt_token_ids


def sampled_tokens(sequences: Sequence[TrainingSequence]) -> SampledTokens:
    """Return the numbers of sampled tokens of each group and of each completion over all its sequences."""
    by_group: Counter[int] = Counter()
    by_completion: Counter[int] = Counter()
    for sequence in sequences:
        by_group[sequence.group] += sequence.sampled
        by_completion[sequence.place] += sequence.sampled
    return SampledTokens(by_group=by_group, by_completion=by_completion)
