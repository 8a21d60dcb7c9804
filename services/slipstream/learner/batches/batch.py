"""From groups to the sequences that train, and to minibatches of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.algorithms.shaping.duplicates import duplicate_weights
from slipstream.algorithms.spec import Shaping
from slipstream.records import Completion, FinishReason, Group


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence:
    """One completion behind its prompt, as it is trained on."""

    prompt_token_ids: tuple[int, ...]
    completion: Completion
    place: int
    """Index of the completion among all completions of the batch, in order."""
    group: int
    share: float = 1.0
    """Factor of its advantage: less than 1 where equal answers share it."""

    @property
    def length(self) -> int:
        """Tokens of prompt and completion."""
        return len(self.prompt_token_ids) + len(self.completion.token_ids)

    @property
    def sampled(self) -> int:
        """Tokens that the policy sampled."""
        return sum(self.completion.mask)


def make_sequences(groups: Sequence[Group], shaping: Shaping) -> list[TrainingSequence]:
    """The completions to train on.

    Left out, of the loss and of what it is divided by: withheld ones (no reward), those that the overlong
    filter takes, and repeated answers where duplicates are dropped.
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
    """Minibatches of whole groups, in order; never an empty one unless there is nothing at all.

    Replay hands groups out by age, the oldest prompt first, and they are not shuffled: a group of a later
    minibatch is trained by a policy that has moved on, and that comes on top of the age of the youngest.
    """
    names = sorted({sequence.group for sequence in sequences})
    if not names:
        return [[]]
    part_of = {name: index * parts // len(names) for index, name in enumerate(names)}
    split = [[s for s in sequences if part_of[s.group] == part] for part in range(parts)]
    return [part for part in split if part]


def prompt_tokens(sequences: Sequence[TrainingSequence]) -> dict[int, int]:
    """Sampled tokens of each group over all its sequences."""
    totals: dict[int, int] = {}
    for sequence in sequences:
        totals[sequence.group] = totals.get(sequence.group, 0) + sequence.sampled
    return totals
