"""The policy as judge of answers: the probability that it calls an answer right rather than wrong.

In Self-Rewarding Language Models, arXiv:2401.10020, the model writes three reviews that end in a score out of
five, and the scores are averaged. Here nothing is sampled: the judgement is the probability of one verdict
against the other, which has no sampling noise and costs one forward pass.
"""

from collections.abc import Iterator, Sequence

import torch

from slipstream.learner.policy.model import Policy
from slipstream.learner.stages.answer_logprobs import answer_logprobs
from slipstream.learner.stages.supervised import Pair, unsampled_answer
from slipstream.prompts.judging import judge_question
from slipstream.records import Completion, Group
from slipstream.tokens import PromptTooLong, Tokens

VERDICTS = ("yes", "no")


class Judge:
    """Judges answers with the current weights of the policy."""

    def __init__(
        self,
        policy: Policy,
        tokens: Tokens,
        *,
        template: str,
        verdicts: tuple[str, str] | None,
        max_tokens_per_row: int,
    ) -> None:
        self._policy = policy
        self._tokens = tokens
        self._template = template
        self._verdicts = [tokens.encode_answer(verdict) for verdict in verdicts or VERDICTS]
        self._max_tokens = max_tokens_per_row

    def scores(self, groups: Sequence[Group]) -> list[list[float | None]]:
        """Return the probability of "right" against "wrong" of each answer, 0 to 1.

        None for a withheld answer, and for a question that does not fit the context.
        """
        encoded = [[self._question(group, answer) for answer in group.completions] for group in groups]
        questions = [ids for of_group in encoded for ids in of_group if ids is not None]
        judged = iter(self._judge(questions))
        return [[None if ids is None else next(judged) for ids in of_group] for of_group in encoded]

    def _question(self, group: Group, answer: Completion) -> tuple[int, ...] | None:
        if answer.withheld or not any(answer.mask):
            return None
        try:
            return self._tokens.encode(judge_question(self._template, group.prompt, answer=answer.text))
        except PromptTooLong:
            return None

    def _judge(self, questions: Sequence[tuple[int, ...]]) -> list[float]:
        if not questions:
            return []
        logprobs = answer_logprobs(
            self._policy, list(self._verdict_pairs(questions)), max_tokens=self._max_tokens
        )
        right_Q, wrong_Q = torch.tensor(logprobs).view(-1, 2).unbind(dim=1)
        return [float(score) for score in torch.sigmoid(right_Q - wrong_Q)]

    def _verdict_pairs(self, questions: Sequence[tuple[int, ...]]) -> Iterator[Pair]:
        for ids in questions:
            for verdict in self._verdicts:
                yield Pair(prompt_token_ids=ids, answer=unsampled_answer(verdict))
