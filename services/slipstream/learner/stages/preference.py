"""A round of preference training: pair answers, compute reference logprobs, then descend.

The reference of a round is the policy at its start. Its log-probabilities are computed once, before the first
step, so there is no second model in memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from slipstream.algorithms.preference import preference_loss
from slipstream.config import RunConfig, stages
from slipstream.learner.batches.batch import TrainingSequence, sampled_tokens
from slipstream.learner.batches.rows import make_row
from slipstream.learner.policy.model import Policy
from slipstream.learner.stages import demonstrations, supervised, verified
from slipstream.learner.stages.answer_logprobs import answer_logprobs, sum_by_sequence
from slipstream.learner.stages.judge import Judge
from slipstream.learner.stages.pairs import (
    Pairs,
    PreferencePair,
    check_same_prompt,
    pairs_by_score,
    pairs_with_demonstrations,
    verified_scores,
)
from slipstream.prompts import PromptSource
from slipstream.records import Completion, Group
from slipstream.tokens import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencedPair:
    """A pair with the reference's log-probabilities of both answers, in nats."""

    chosen: supervised.Pair
    rejected: supervised.Pair
    ref_chosen: float
    ref_rejected: float

    @property
    def length(self) -> int:
        """Tokens of both sequences."""
        return sum(half.sequence(0).length for half in (self.chosen, self.rejected))


class PreferenceTraining:
    """Trains a policy on pairs of its own answers, or of a demonstration and its answer."""

    def __init__(
        self,
        policy: Policy,
        config: RunConfig,
        stage: stages.PreferenceStage,
        *,
        tokens: Tokens,
        source: PromptSource,
    ) -> None:
        self._policy = policy
        self._config = config
        self._stage = stage
        self._tokens = tokens
        self._source = source

    def learn(
        self,
        groups: Sequence[Group],
        *,
        version: int,
        report: supervised.Progress,
        stopped: Callable[[], bool],
    ) -> verified.RoundResult:
        """Train on one round. Completions of several segments are left out.

        Errors: NothingKept, Interrupted, NotFinite.
        """
        stage = self._stage
        ranked = self._rank([_single_answers(group) for group in groups])
        if not ranked.pairs:
            raise verified.NothingKept(_why_nothing(ranked.counts, len(groups), stage))
        pairs = with_reference(self._policy, ranked.pairs, max_tokens=self._max_tokens)
        steps = supervised.steps_of(len(pairs), batch_size=stage.batch_size, epochs=stage.epochs)
        loss = supervised.descend(
            self._policy,
            supervised.epochs_of(
                pairs, batch_size=stage.batch_size, epochs=stage.epochs, seed=self._config.seed + version
            ),
            lambda batch: backward(self._policy, batch, beta=stage.beta, max_tokens=self._max_tokens),
            steps=steps,
            peak=stage.learning_rate,
            report=report,
            stopped=stopped,
        )
        tokens = sum(sum(half.answer.mask) for pair in pairs for half in (pair.chosen, pair.rejected))
        return verified.RoundResult(
            rows=[_row(pair) for pair in ranked.pairs],
            counts={"completions": sum(len(group.completions) for group in groups), **ranked.counts},
            steps=steps,
            loss=loss,
            tokens=stage.epochs * tokens,
        )

    @property
    def _max_tokens(self) -> int:
        return self._config.learner.max_tokens_per_row

    def _rank(self, groups: Sequence[Group]) -> Pairs:
        least_distance = self._stage.least_distance
        if self._stage.ranked_by == "demonstrations":
            return pairs_with_demonstrations(groups, self._demonstration, least_distance=least_distance)
        if self._stage.ranked_by == "verifier":
            weights: dict[str, float] = {reward.name: reward.weight for reward in self._config.rewards}
            return pairs_by_score(groups, verified_scores(groups, weights), least_distance=least_distance)
        assert self._stage.judge_prompt is not None, "the stage requires it with ranked_by: model"
        judge = Judge(
            self._policy,
            self._tokens,
            template=self._stage.judge_prompt,
            verdicts=self._stage.judge_answers,
            max_tokens_per_row=self._max_tokens,
        )
        return pairs_by_score(
            groups,
            judge.scores(groups),
            anchor=self._config.evaluation.reward,
            least_distance=least_distance,
        )

    def _demonstration(self, group: Group) -> Completion:
        prompt, text = self._source.demonstration(group.dispatch_index)
        check_same_prompt(group, prompt)
        return replace(
            supervised.unsampled_answer(self._tokens.encode_answer(text, prompt=group.prompt)), text=text
        )


def _single_answers(group: Group) -> Group:
    """Return the group with the completions that are one answer to its prompt."""
    return replace(group, completions=tuple(c for c in group.completions if c.is_one_answer))


def with_reference(
    policy: Policy, pairs: Sequence[PreferencePair], *, max_tokens: int
) -> list[ReferencedPair]:
    """Return the pairs with the logprobs of their answers under the current policy."""
    halves = [
        supervised.Pair(prompt_token_ids=pair.group.prompt_token_ids, answer=answer)
        for pair in pairs
        for answer in (pair.chosen, pair.rejected)
    ]
    logprobs = answer_logprobs(policy, halves, max_tokens=max_tokens)
    return [
        ReferencedPair(
            chosen=halves[i], rejected=halves[i + 1], ref_chosen=logprobs[i], ref_rejected=logprobs[i + 1]
        )
        for i in range(0, len(halves), 2)
    ]


def backward(policy: Policy, batch: Sequence[ReferencedPair], *, beta: float, max_tokens: int) -> float:
    """Add the gradient of the mean loss of the pairs; return the mean."""
    total = 0.0
    for pairs in rows_of(batch, max_tokens=max_tokens):
        sequences = list(_sequences(pairs))
        row = make_row(sequences, sampled_tokens(sequences), policy.device)
        chosen_P, rejected_P = sum_by_sequence(policy, row).view(-1, 2).unbind(dim=1)
        losses = preference_loss(
            chosen_P=chosen_P,
            rejected_P=rejected_P,
            ref_chosen_P=chosen_P.new_tensor([pair.ref_chosen for pair in pairs]),
            ref_rejected_P=chosen_P.new_tensor([pair.ref_rejected for pair in pairs]),
            beta=beta,
        )
        loss = losses.loss_P.sum() / len(batch)
        torch.autograd.backward(loss)
        total += float(loss.detach())
    return total


def rows_of(pairs: Sequence[ReferencedPair], *, max_tokens: int) -> Iterator[list[ReferencedPair]]:
    """Yield the pairs in rows of at most `max_tokens`, both halves in one row.

    A longer pair has its own row.
    """
    row: list[ReferencedPair] = []
    for pair in sorted(pairs, key=lambda pair: pair.length):
        if row and sum(other.length for other in row) + pair.length > max_tokens:
            yield row
            row = []
        row.append(pair)
    if row:
        yield row


def _sequences(pairs: Sequence[ReferencedPair]) -> Iterator[TrainingSequence]:
    for place, pair in enumerate(pairs):
        yield pair.chosen.sequence(2 * place)
        yield pair.rejected.sequence(2 * place + 1)


def _row(pair: PreferencePair) -> dict[str, object]:
    halves = {"chosen": pair.chosen, "rejected": pair.rejected}
    return {
        "prompt": demonstrations.prompt_text(pair.group.prompt),
        "prompt_token_ids": list(pair.group.prompt_token_ids),
        "distance": pair.distance,
        **{f"{name}_token_ids": list(half.token_ids) for name, half in halves.items()},
        **{name: half.text for name, half in halves.items()},
    }


def _why_nothing(counts: Mapping[str, int], groups: int, stage: stages.PreferenceStage) -> str:
    dropped = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
    lower = " lower least_distance," if counts.get("alike") else ""
    return (
        f"made 0 pairs of {groups} groups ({dropped or 'there were none'}), ranked by {stage.ranked_by};"
        f"{lower} sample more (groups, rollout.group_size), or prompts that are answered right only some of "
        "the time"
    )
