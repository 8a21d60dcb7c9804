"""The verified answers of a round, and supervised training on them.

Rejection-sampling fine-tuning as in the third stage of DeepSeek-R1, arXiv:2501.12948, with the distinct right
answers of a prompt kept, as in Scaling Relationship on Learning Mathematical Reasoning, arXiv:2308.01825.
DeepSeek-R1 restarts from its base model; here the current policy trains further. With `keep: best` the
answers of the largest reward are kept, as in RAFT: Reward rAnked FineTuning, arXiv:2304.06767. With `mix`
demonstrations of other data are trained on beside them.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.config import RunConfig, stages
from slipstream.learner.policy.model import Policy
from slipstream.learner.stages import supervised
from slipstream.learner.stages.demonstrations import Demonstrations, DemonstrationSampler, prompt_text
from slipstream.learner.training.rewards import task_reward
from slipstream.records import Completion, FinishReason, Group
from slipstream.rpc.errors import SlipstreamError
from slipstream.tokens import PromptTooLong, Tokens


class NothingKept(SlipstreamError):
    """A round left nothing to train on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """The result of a round: its training set as rows of a file, its counts, its last loss."""

    rows: Sequence[Mapping[str, object]]
    counts: Mapping[str, int]
    steps: int
    loss: float
    tokens: int


class VerifiedTraining:
    """Trains a policy, supervised, on the answers that the verifier found right."""

    def __init__(
        self,
        policy: Policy,
        config: RunConfig,
        stage: stages.VerifiedStage,
        *,
        translate: Callable[[Group, Completion], supervised.Pair | None] | None = None,
        demonstrations: DemonstrationSampler | None = None,
    ) -> None:
        """Take what differs between stages.

        translate: converts another model's answer to this policy's tokens; its result is None if the prompt
            does not fit. demonstrations: the sampler of a stage that has a mix.
        """
        self._policy = policy
        self._config = config
        self._stage = stage
        self._translate = translate or _as_sampled
        self._sampler = demonstrations

    def learn(
        self,
        groups: Sequence[Group],
        *,
        version: int,
        report: supervised.Progress,
        stopped: Callable[[], bool],
    ) -> RoundResult:
        """Train on one round.

        Errors: NothingKept, Interrupted, NotFinite.
        """
        stage, reward = self._stage, self._config.evaluation.reward
        weights: dict[str, float] = {reward.name: reward.weight for reward in self._config.rewards}
        kept, counts = keep_verified(
            groups,
            reward=reward,
            least=stage.least_reward,
            per_prompt=stage.keep_per_prompt,
            best_by=weights if stage.keep == "best" else None,
        )
        translated = [self._translate(group, answer) for group, answer in kept]
        pairs = [pair for pair in translated if pair is not None]
        counts["kept"] = len(pairs)
        if len(pairs) < len(translated):
            counts["unfit"] = len(translated) - len(pairs)
        if not pairs:
            raise NothingKept(_why_nothing(counts, reward, stage.least_reward))
        others = self._demonstrations(version, pairs, counts)
        trained = [*pairs, *others.pairs]
        steps = supervised.steps_of(len(trained), batch_size=stage.batch_size, epochs=stage.epochs)
        seed = self._config.seed + version
        batches = supervised.epochs_of(trained, batch_size=stage.batch_size, epochs=stage.epochs, seed=seed)
        settings = supervised.Fitting(
            steps=steps,
            learning_rate=stage.learning_rate,
            max_tokens_per_row=self._config.learner.max_tokens_per_row,
        )
        loss = supervised.fit(self._policy, batches, settings, report=report, stopped=stopped)
        return RoundResult(
            rows=[*(_row(group, answer) for group, answer in kept), *others.rows],
            counts=counts,
            steps=steps,
            loss=loss,
            tokens=stage.epochs * _tokens(trained),
        )

    def _demonstrations(
        self, version: int, kept: Sequence[supervised.Pair], counts: dict[str, int]
    ) -> Demonstrations:
        """Return the demonstrations of the round; count the sequences and tokens of each origin."""
        if self._sampler is None:
            return Demonstrations()
        drawn = self._sampler.draw(version, answers=len(kept))
        counts["demonstrations"] = len(drawn.pairs)
        counts["kept_tokens"] = _tokens(kept)
        counts["demonstration_tokens"] = _tokens(drawn.pairs)
        if drawn.unfit:
            counts["unfit"] = counts.get("unfit", 0) + drawn.unfit
        return drawn


def keep_verified(
    groups: Sequence[Group],
    *,
    reward: str,
    least: float | None,
    per_prompt: int | None,
    best_by: Mapping[str, float] | None = None,
) -> tuple[list[tuple[Group, Completion]], dict[str, int]]:
    """Return the distinct answers of each prompt whose `reward` is at least `least`, and counts by outcome.

    per_prompt: keep the first ones only; with `best_by`, the weights of rewards by name, those with the
        largest weighted sum.
    Outcomes of dropped answers: `withheld` (no score), `wrong`, `cut_off` by the token budget, `repeated` (or
    after the first `per_prompt`), `worse` than the best, `several_segments` (no single answer to the prompt).
    """
    answers = [(group, answer) for group in groups for answer in group.completions]
    if best_by is not None:  # the sort is stable; the loop below keeps the first of each prompt
        answers.sort(key=lambda pair: -_total(pair[1], best_by))
    kept: list[tuple[Group, Completion]] = []
    counts: Counter[str] = Counter(completions=len(answers))
    kept_ids: dict[str, set[tuple[int, ...]]] = {}
    for group, answer in answers:
        seen = kept_ids.setdefault(group.prompt.prompt_id, set())
        why = _why_not(answer, reward, least)
        if why is None and answer.token_ids in seen:
            why = "repeated"
        elif why is None and len(seen) == per_prompt:
            why = "repeated" if best_by is None else "worse"
        if why is None:
            seen.add(answer.token_ids)
            kept.append((group, answer))
        else:
            counts[why] += 1
    return kept, dict(counts)


def _total(answer: Completion, weights: Mapping[str, float]) -> float:
    """Return the weighted sum of the rewards; -inf for a withheld answer."""
    return -math.inf if answer.withheld else task_reward(answer, weights)


def score_of(answer: Completion, reward: str) -> float:
    """Return the value of one reward component of a scored answer."""
    return next(each.value for each in answer.rewards if each.name == reward)


def translation(
    student: Tokens, *, same_tokens: bool
) -> Callable[[Group, Completion], supervised.Pair | None]:
    """Return a function that converts another model's answer to a pair for `student`, with its own prompt.

    Token ids are kept if both models have the same; otherwise the answer is encoded from its text.
    """

    def translate(group: Group, answer: Completion) -> supervised.Pair | None:
        try:
            prompt_token_ids = student.encode(group.prompt)
        except PromptTooLong:
            return None
        own = (
            answer
            if same_tokens
            else supervised.unsampled_answer(student.encode_answer(answer.text, prompt=group.prompt))
        )
        return supervised.Pair(prompt_token_ids=prompt_token_ids, answer=own)

    return translate


def _tokens(pairs: Sequence[supervised.Pair]) -> int:
    """Return the number of tokens that train."""
    return sum(sum(pair.answer.mask) for pair in pairs)


def _as_sampled(group: Group, answer: Completion) -> supervised.Pair:
    return supervised.Pair(prompt_token_ids=group.prompt_token_ids, answer=answer)


def _why_not(answer: Completion, reward: str, least: float | None) -> str | None:
    if answer.withheld or not answer.sampled:
        return "withheld"
    if not answer.is_one_answer:
        return "several_segments"
    if least is not None and score_of(answer, reward) < least:
        return "wrong"
    return "cut_off" if answer.finish_reason is FinishReason.LENGTH else None


def _why_nothing(counts: Mapping[str, int], reward: str, least: float | None) -> str:
    dropped = ", ".join(
        f"{number} {name}" for name, number in counts.items() if number and name != "completions"
    )
    kept = f"kept 0 of {counts['completions']} answers ({dropped or 'there were none'})"
    more = "train longer in the stage before, sample more (groups, rollout.group_size)"
    if least is None:
        return f"{kept}: none has a score and an end; {more}, or raise rollout.max_new_tokens"
    return (
        f"{kept}: none has {reward} >= {least:g} and an end; {more}, raise rollout.max_new_tokens, or lower "
        "least_reward"
    )


def _row(group: Group, answer: Completion) -> dict[str, object]:
    return {
        "origin": "sampled",
        "prompt": prompt_text(group.prompt),
        "answer": answer.text,
        "prompt_token_ids": list(group.prompt_token_ids),
        "token_ids": list(answer.token_ids),
        "rewards": {reward.name: reward.value for reward in answer.rewards},
    }
