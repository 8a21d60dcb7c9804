"""The sequences of a batch that train, and their minibatches."""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.algorithms.shaping.duplicates import duplicate_weights
from slipstream.algorithms.spec import Shaping
from slipstream.records import Completion, FinishReason, Group


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence:
    """One prompt and completion that trains."""

    prompt_token_ids: tuple[int, ...]
    completion: Completion
    place: int
    """Index of the completion among all completions of the batch, in order."""
    group: int
    share: float = 1.0
    """Factor of its advantage: below 1 if duplicate answers share one."""

    @property
    def length(self) -> int:
        """Number of tokens of prompt and completion."""
        return len(self.prompt_token_ids) + len(self.completion.token_ids)

    @property
    def sampled(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(self.completion.mask)


def make_sequences(groups: Sequence[Group], shaping: Shaping) -> list[TrainingSequence]:
    """Return the completions to train on.

    The loss and its counts leave out withheld completions (no reward), those that the overlong filter
    removes, and repeated answers if duplicates are dropped.
    """
    sequences: list[TrainingSequence] = []
    place = 0
    for index, group in enumerate(groups):
        members = [(place + i, c) for i, c in enumerate(group.completions) if _trains(c, shaping)]
        shares = duplicate_weights([c.token_ids for _, c in members], shaping.duplicates)
        sequences += [
            TrainingSequence(
                prompt_token_ids=group.prompt_token_ids,
                completion=completion,
                place=where,
                group=index,
                share=share,
            )
            for (where, completion), share in zip(members, shares, strict=True)
            if share
        ]
        place += len(group.completions)
    return sequences


def _trains(completion: Completion, shaping: Shaping) -> bool:
    overlong = completion.finish_reason is FinishReason.LENGTH and shaping.overlong_filter is not None
    return not completion.withheld and any(completion.mask) and not overlong


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


def prompt_tokens(sequences: Sequence[TrainingSequence]) -> dict[int, int]:
    """Return the sampled tokens of each group over all its sequences."""
    totals: dict[int, int] = {}
    for sequence in sequences:
        totals[sequence.group] = totals.get(sequence.group, 0) + sequence.sampled
    return totals
