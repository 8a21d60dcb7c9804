"""From groups to packed rows: flat tokens with sequence ids, no padding.

Shape suffixes: R tokens of a row, T sampled tokens of a row (those with a loss), B sequences of a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from slipstream.algorithms import token_versions
from slipstream.types import Completion, Group


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence:
    """One completion behind its prompt, as it is trained on."""

    prompt_token_ids: tuple[int, ...]
    completion: Completion
    advantage: float
    group: int

    @property
    def length(self) -> int:
        """Tokens of prompt and completion."""
        return len(self.prompt_token_ids) + len(self.completion.token_ids)

    @property
    def sampled(self) -> int:
        """Tokens that the policy sampled."""
        return sum(self.completion.mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Packed sequences for one forward pass."""

    tokens_R: torch.Tensor
    positions_R: torch.Tensor
    predictors_T: torch.Tensor
    targets_T: torch.Tensor
    rollout_logprobs_T: torch.Tensor
    versions_T: torch.Tensor
    sequence_ids_T: torch.Tensor
    advantages_B: torch.Tensor
    group_ids_B: torch.Tensor
    prompt_tokens_B: torch.Tensor


def total_rewards(groups: Sequence[Group], weights: Mapping[str, float]) -> torch.Tensor:
    """Weighted reward of every completion in order, float64; NaN where it was withheld."""
    totals = [
        float("nan") if c.withheld else sum(weights[r.name] * r.value for r in c.rewards)
        for group in groups
        for c in group.completions
    ]
    return torch.tensor(totals, dtype=torch.float64)


def group_ids(groups: Sequence[Group]) -> torch.Tensor:
    """Index of its group for every completion in order, int64."""
    return torch.tensor([i for i, group in enumerate(groups) for _ in group.completions], dtype=torch.int64)


def make_sequences(groups: Sequence[Group], advantages: Sequence[float]) -> list[TrainingSequence]:
    """The completions to train on; withheld ones (no reward) are left out."""
    members = [(i, group, c) for i, group in enumerate(groups) for c in group.completions]
    return [
        TrainingSequence(
            prompt_token_ids=group.prompt_token_ids, completion=completion, advantage=advantage, group=index
        )
        for (index, group, completion), advantage in zip(members, advantages, strict=True)
        if not completion.withheld and any(completion.mask)
    ]


def pack(sequences: Sequence[TrainingSequence], *, max_tokens: int) -> list[list[TrainingSequence]]:
    """First-fit-decreasing into rows of at most `max_tokens`; a longer sequence gets a row of its own."""
    rows: list[list[TrainingSequence]] = []
    free: list[int] = []
    for sequence in sorted(sequences, key=lambda s: -s.length):
        place = next((i for i, room in enumerate(free) if room >= sequence.length), None)
        if place is None:
            place = len(rows)
            rows.append([])
            free.append(max_tokens)
        rows[place].append(sequence)
        free[place] -= sequence.length
    return rows


def prompt_tokens(sequences: Sequence[TrainingSequence]) -> dict[int, int]:
    """Sampled tokens of each group over all its sequences."""
    totals: dict[int, int] = {}
    for sequence in sequences:
        totals[sequence.group] = totals.get(sequence.group, 0) + sequence.sampled
    return totals


def make_row(sequences: Sequence[TrainingSequence], totals: Mapping[int, int], device: torch.device) -> Row:
    """The tensors of one row; `totals` is `prompt_tokens` of the whole minibatch."""
    tokens: list[int] = []
    positions: list[int] = []
    predictors: list[int] = []
    targets: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    ids: list[int] = []
    for index, sequence in enumerate(sequences):
        completion = sequence.completion
        first = len(tokens) + len(sequence.prompt_token_ids)
        places = [t for t, sampled in enumerate(completion.mask) if sampled]
        of_token = token_versions(
            [(s.version, s.start, s.end) for s in completion.spans], len(completion.mask)
        )
        tokens += [*sequence.prompt_token_ids, *completion.token_ids]
        positions += range(sequence.length)
        predictors += [first + t - 1 for t in places]
        targets += [completion.token_ids[t] for t in places]
        logprobs += [completion.logprobs[t] for t in places]
        versions += [of_token[t] for t in places]
        ids += [index] * len(places)
    return Row(
        tokens_R=torch.tensor(tokens, device=device),
        positions_R=torch.tensor(positions, device=device),
        predictors_T=torch.tensor(predictors, device=device),
        targets_T=torch.tensor(targets, device=device),
        rollout_logprobs_T=torch.tensor(logprobs, device=device),
        versions_T=torch.tensor(versions, device=device),
        sequence_ids_T=torch.tensor(ids, device=device),
        advantages_B=torch.tensor([s.advantage for s in sequences], device=device),
        group_ids_B=torch.tensor([s.group for s in sequences], device=device),
        prompt_tokens_B=torch.tensor([totals[s.group] for s in sequences], device=device),
    )
