"""The verified answers of a round, and supervised training on them.

Rejection-sampling fine-tuning as in the third stage of DeepSeek-R1, arXiv:2501.12948, with the distinct right
answers of a prompt kept, as in Scaling Relationship on Learning Mathematical Reasoning, arXiv:2308.01825.
The paper goes back to its base model for it; here the policy goes on from where it is.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.config import RunConfig
from slipstream.config.stages import DistillationStage, RejectionSamplingStage
from slipstream.learner.policy.model import Policy
from slipstream.learner.stages.supervised import Fitting, Pair, Progress, epochs_of, fit, steps_of, written
from slipstream.rpc.errors import SlipstreamError
from slipstream.tokens import PromptTooLong, Tokens
from slipstream.types import Completion, FinishReason, Group


class NothingKept(SlipstreamError):
    """A round left nothing to train on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a round came to: its training set as rows for people, its counts, its last loss."""

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
        stage: RejectionSamplingStage | DistillationStage,
        *,
        translate: Callable[[Group, Completion], Pair | None] | None = None,
    ) -> None:
        """`translate` brings another model's answer to this policy; None where it does not fit."""
        self._policy = policy
        self._config = config
        self._stage = stage
        self._translate = translate or _as_sampled

    def learn(
        self,
        groups: Sequence[Group],
        *,
        version: int,
        report: Progress,
        stopped: Callable[[], bool],
    ) -> Learned:
        """Train on one round.

        Errors: NothingKept, Interrupted, NotFinite.
        """
        stage, reward = self._stage, self._config.evaluation.reward
        kept, counts = keep_verified(
            groups, reward=reward, least=stage.least_reward, per_prompt=stage.keep_per_prompt
        )
        found = [self._translate(group, answer) for group, answer in kept]
        pairs = [pair for pair in found if pair is not None]
        counts["kept"] = len(pairs)
        if len(pairs) < len(found):
            counts["unfit"] = len(found) - len(pairs)
        if not pairs:
            raise NothingKept(_why_nothing(counts, reward, stage.least_reward))
        steps = steps_of(len(pairs), batch_size=stage.batch_size, epochs=stage.epochs)
        seed = self._config.seed + version
        batches = epochs_of(pairs, batch_size=stage.batch_size, epochs=stage.epochs, seed=seed)
        settings = Fitting(
            steps=steps,
            learning_rate=stage.learning_rate,
            max_tokens_per_row=self._config.learner.max_tokens_per_row,
        )
        loss = fit(self._policy, batches, settings, report=report, stopped=stopped)
        return Learned(
            rows=[_row(group, answer) for group, answer in kept],
            counts=counts,
            steps=steps,
            loss=loss,
            tokens=stage.epochs * sum(sum(pair.answer.mask) for pair in pairs),
        )


def keep_verified(
    groups: Sequence[Group], *, reward: str, least: float, per_prompt: int | None
) -> tuple[list[tuple[Group, Completion]], dict[str, int]]:
    """The answers whose `reward` is at least `least`, each once a prompt, and what became of all of them.

    Dropped, and counted: `withheld` (no score), `wrong`, `cut_off` by the token budget, `repeated` (or beyond
    `per_prompt`).
    """
    kept: list[tuple[Group, Completion]] = []
    counts: Counter[str] = Counter(completions=sum(len(group.completions) for group in groups))
    known: dict[str, set[tuple[int, ...]]] = {}
    for group in groups:
        seen = known.setdefault(group.prompt.prompt_id, set())
        for answer in group.completions:
            why = _why_not(answer, reward, least)
            if why is None and (answer.token_ids in seen or len(seen) == per_prompt):
                why = "repeated"
            if why is None:
                seen.add(answer.token_ids)
                kept.append((group, answer))
            else:
                counts[why] += 1
    return kept, dict(counts)


def score_of(answer: Completion, reward: str) -> float:
    """The value of one reward component of a scored answer."""
    return next(given.value for given in answer.rewards if given.name == reward)


def translation(student: Tokens, *, same_tokens: bool) -> Callable[[Group, Completion], Pair | None]:
    """From another model's answer to a pair for `student`, whose prompts are always in its own form.

    Token ids are kept where both models read them alike; otherwise the answer goes through its text.
    """

    def translate(group: Group, answer: Completion) -> Pair | None:
        try:
            prompt_token_ids = student.encode(group.prompt)
        except PromptTooLong:
            return None
        own = answer if same_tokens else written(student.encode_answer(answer.text, prompt=group.prompt))
        return Pair(prompt_token_ids=prompt_token_ids, answer=own)

    return translate


def _as_sampled(group: Group, answer: Completion) -> Pair:
    return Pair(prompt_token_ids=group.prompt_token_ids, answer=answer)


def _why_not(answer: Completion, reward: str, least: float) -> str | None:
    if answer.withheld or not any(answer.mask):
        return "withheld"
    if score_of(answer, reward) < least:
        return "wrong"
    return "cut_off" if answer.finish_reason is FinishReason.LENGTH else None


def _why_nothing(counts: Mapping[str, int], reward: str, least: float) -> str:
    dropped = ", ".join(
        f"{number} {name}" for name, number in counts.items() if number and name != "completions"
    )
    return (
        f"kept 0 of {counts['completions']} answers ({dropped or 'there were none'}): none has {reward} >= "
        f"{least:g} and an end; train longer in the stage before, sample more (groups, rollout.group_size), "
        "raise rollout.max_new_tokens, or lower least_reward"
    )


def _row(group: Group, answer: Completion) -> dict[str, object]:
    return {
        "prompt": prompt_text(group),
        "answer": answer.text,
        "prompt_token_ids": list(group.prompt_token_ids),
        "token_ids": list(answer.token_ids),
        "rewards": {reward.name: reward.value for reward in answer.rewards},
    }


def prompt_text(group: Group) -> object:
    """A prompt as it is written down for people: text, or a list of messages."""
    prompt = group.prompt
    return prompt.text or [{"role": turn.role, "content": turn.content} for turn in prompt.messages]
