"""One packed row as tensors: flat tokens with sequence ids.

Shape suffixes: R tokens of a row, T sampled tokens of a row (those with a loss), B sequences of a row (a
sequence is one segment of a completion), L layers, K experts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from slipstream import algorithms, records
from slipstream.learner.batches import batch, routed_experts, teacher_logprobs, top_logprobs


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
    order_T: torch.Tensor
    """Index of each token among all sampled tokens of its completion, in the order of sampling."""
    ends_B: torch.Tensor
    """Index in the row of the last token of each sequence."""
    places_B: torch.Tensor
    """Index in the batch of the completion of each sequence; several segments of one completion share it."""
    shares_B: torch.Tensor
    group_ids_B: torch.Tensor
    prompt_tokens_B: torch.Tensor
    """Sampled tokens of the whole group of each sequence."""
    completion_tokens_B: torch.Tensor
    """Sampled tokens of the whole completion of each sequence."""
    mask_T: torch.Tensor
    """1; 0 in an empty row, which a rank computes because each pass is a collective."""
    layout: algorithms.Layout
    """The layout of sequence_ids_T and mask_T, for every loss of this row."""
    members_2R: torch.Tensor | None = None
    """Only if sequences share prompts: the number of each token's prompt, and of its sequence, 0 for the
    prompt itself."""
    experts_RLK: torch.Tensor | None = None
    """The experts that the rollouts used, see `experts_of_row`."""
    teacher: teacher_logprobs.RowTeacher | None = None
    """The teacher's logprobs of the sampled tokens."""
    rollout_top: top_logprobs.RolloutTop | None = None
    """The rollout's likeliest tokens, if the objective reads them."""

    @property
    def size_3(self) -> torch.Tensor:
        """Numbers of tokens, of sampled tokens, and of pairs of a token and a token it attends to, float64; 0
        in an empty row."""
        count = torch.ones_like(self.tokens_R).sum()
        sizes = [count, self.mask_T.sum(), (self.positions_R + 1).sum()]
        return torch.stack([size.double() for size in sizes]) * self.mask_T.any()

    @property
    def attention_RR(self) -> torch.Tensor | None:
        """Whether token [R, first] attends to token [R, second]: to earlier ones of its prompt and sequence.

        It is computed on each access: the masks of all rows of a batch would take more memory than one pass.
        """
        if self.members_2R is None:
            return None
        bundle_R, member_R = self.members_2R
        same_bundle_RR = bundle_R[:, None] == bundle_R
        visible_RR = (member_R == 0) | (member_R[:, None] == member_R)
        attention_RR: torch.Tensor = (same_bundle_RR & visible_RR).tril()
        return attention_RR


def make_row(
    sequences: Sequence[batch.TrainingSequence],
    totals: batch.SampledTokens,
    device: torch.device,
    *,
    share_prompts: bool = False,
    rollout_top: bool = False,
) -> Row:
    """Return the tensors of one row.

    totals: `sampled_tokens` of the whole minibatch.
    share_prompts: consecutive sequences with the same prompt follow one copy of it, and an attention mask
        lets each of them attend to that prompt and itself.
    rollout_top: whether the row has the rollout's likeliest tokens, which all sequences must have then.
    """
    builder = _RowBuilder()
    previous: batch.TrainingSequence | None = None
    for index, sequence in enumerate(sequences):
        shared = share_prompts and previous is not None and batch.same_prompt(previous, sequence)
        builder.add(index, sequence, shared=shared)
        previous = sequence
    sequence_ids_T = torch.tensor(builder.sequence_ids, device=device, dtype=torch.int64)
    mask_T = torch.ones(len(builder.targets), device=device)
    return Row(
        tokens_R=torch.tensor(builder.tokens, device=device),
        positions_R=torch.tensor(builder.positions, device=device),
        predictors_T=torch.tensor(builder.predictors, device=device),
        targets_T=torch.tensor(builder.targets, device=device),
        rollout_logprobs_T=torch.tensor(builder.logprobs, device=device),
        versions_T=torch.tensor(builder.versions, device=device),
        sequence_ids_T=sequence_ids_T,
        order_T=torch.tensor(builder.order, device=device, dtype=torch.int64),
        ends_B=torch.tensor(builder.ends, device=device, dtype=torch.int64),
        places_B=torch.tensor([s.place for s in sequences], device=device, dtype=torch.int64),
        shares_B=torch.tensor([s.share for s in sequences], device=device),
        group_ids_B=torch.tensor([s.group for s in sequences], device=device),
        prompt_tokens_B=torch.tensor([totals.by_group[s.group] for s in sequences], device=device),
        completion_tokens_B=torch.tensor([totals.by_completion[s.place] for s in sequences], device=device),
        mask_T=mask_T,
        layout=algorithms.lay_out(mask_T, sequence_ids_T),
        members_2R=torch.tensor([builder.bundles, builder.members], device=device) if share_prompts else None,
        experts_RLK=routed_experts.experts_of_row(builder.origins, device),
        teacher=teacher_logprobs.teacher_of_row([sequence.segment for sequence in sequences], device),
        rollout_top=top_logprobs.top_of_row([sequence.segment for sequence in sequences], device)
        if rollout_top
        else None,
    )


def empty_row(device: torch.device, *, top_k: int | None = None, rollout_top_k: int = 0) -> Row:
    """Return a row without weight: a prompt and a segment of one token each, with a mask of 0.

    top_k: the teacher's likeliest tokens that the other rows have; None without a teacher. rollout_top_k:
    those of the rollout.
    """
    sequence = batch.TrainingSequence(
        prompt_token_ids=(0,),
        segment=records.Segment(
            token_ids=(0,),
            logprobs=(0.0,),
            mask=(1,),
            spans=(records.VersionSpan(version=0, start=0, end=1),),
            finish_reason=records.FinishReason.STOP,
            teacher=None if top_k is None else teacher_logprobs.empty_teacher(1, top_k),
            top_logprobs=top_logprobs.no_top_logprobs(1, rollout_top_k) if rollout_top_k else None,
        ),
        place=0,
        group=0,
        share=0.0,
    )
    row = make_row([sequence], batch.sampled_tokens([sequence]), device, rollout_top=rollout_top_k > 0)
    mask_T = torch.zeros_like(row.mask_T)
    return replace(row, mask_T=mask_T, layout=algorithms.lay_out(mask_T, row.sequence_ids_T))


@dataclass(slots=True)
class _RowBuilder:
    """The lists of a row. `bundles` and `members` are the rows of `Row.members_2R`."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    bundles: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    predictors: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    sequence_ids: list[int] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    origins: list[routed_experts.Origin] = field(default_factory=list)
    bundle: int = 0
    end_of_prompt: int = 0

    def add(self, index: int, sequence: batch.TrainingSequence, *, shared: bool) -> None:
        """Append a sequence, without its prompt if that is in the row already."""
        segment = sequence.segment
        experts, prompt = segment.routed_experts, len(sequence.prompt_token_ids)
        if not shared:
            self.bundle += 1
            self._append(sequence.prompt_token_ids, first=0, member=0)
            self.origins.append(routed_experts.Origin(experts=experts, first=0, count=prompt))
            self.end_of_prompt = len(self.tokens) - 1
        start = len(self.tokens)
        self._append(segment.token_ids, first=prompt, member=index + 1)
        self.ends.append(len(self.tokens) - 1)
        self.origins.append(
            routed_experts.Origin(experts=experts, first=prompt, count=len(segment.token_ids))
        )
        spans = [(s.version, s.start, s.end) for s in segment.spans]
        of_token = algorithms.token_versions(spans, len(segment.mask))
        for t, sampled in enumerate(segment.mask):
            if sampled:
                self.predictors.append(start + t - 1 if t else self.end_of_prompt)
                self.targets.append(segment.token_ids[t])
                self.logprobs.append(segment.logprobs[t])
                self.versions.append(of_token[t])
                self.sequence_ids.append(index)
        self.order += range(sequence.sampled) if sequence.order is None else sequence.order

    def _append(self, token_ids: Sequence[int], *, first: int, member: int) -> None:
        self.tokens += token_ids
        self.positions += range(first, first + len(token_ids))
        self.bundles += [self.bundle] * len(token_ids)
        self.members += [member] * len(token_ids)
