"""The reward functions, and the one place where a failing one becomes an error instead of a score."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from slipstream.config import ConfigError
from slipstream.config.data import RewardConfig, RewardName
from slipstream.rpc.errors import InvalidRequest
from slipstream.tasks import InvalidExpression, check_countdown
from slipstream.types import FinishReason, Outcome, Prompt, Reward
from slipstream.verifier.format import Format
from slipstream.verifier.ground_truth import countdown_puzzle, expected_answer

MAX_DETAIL = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One completion to judge; one that ended for length is judged like any other."""

    text: str
    tokens: int
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A reward without its name."""

    value: float
    outcome: Outcome = Outcome.SCORE
    detail: str = ""


RewardFunction = Callable[[Prompt, Answer], Verdict]


def exact_match(prompt: Prompt, answer: Answer) -> Verdict:
    """1 when the answer is the ground truth, white space around it aside. An empty answer is invalid."""
    expected, given = expected_answer(prompt), answer.text.strip()
    return Verdict(value=float(given == expected)) if given else _invalid("empty answer")


def countdown(prompt: Prompt, answer: Answer) -> Verdict:
    """1 when the expression reaches the target with the given numbers, each at most once."""
    numbers, target = countdown_puzzle(prompt)
    try:
        return Verdict(value=float(check_countdown(answer.text.strip(), numbers, target)))
    except InvalidExpression as error:
        return _invalid(str(error))


def format_match(prompt: Prompt, answer: Answer, *, pattern: Format) -> Verdict:
    """1 when the whole completion, as it is, matches the pattern. Errors: MatchTooExpensive."""
    return Verdict(value=float(pattern.matches(answer.text)))


def _bind_format(config: RewardConfig) -> RewardFunction:
    assert config.pattern is not None, "RewardConfig requires the pattern of `format`"
    return partial(format_match, pattern=Format(config.pattern))


# Each row makes the function of one configured reward.
REWARDS: Mapping[RewardName, Callable[[RewardConfig], RewardFunction]] = {
    "exact_match": lambda _: exact_match,
    "countdown": lambda _: countdown,
    "format": _bind_format,
}
# Rewards that can take long enough to hold up other calls.
SLOW: frozenset[RewardName] = frozenset({"format"})


def bind_rewards(configs: Sequence[RewardConfig]) -> dict[RewardName, RewardFunction]:
    """The functions of the configured rewards, in order. Errors: ConfigError naming the key at fault."""
    bound: dict[RewardName, RewardFunction] = {}
    for position, config in enumerate(configs):
        if config.name in bound:
            raise ConfigError(f"rewards.{position}.name: `{config.name}` is configured twice")
        try:
            bound[config.name] = REWARDS[config.name](config)
        except ValueError as error:
            raise ConfigError(f"rewards.{position}.pattern: {error}") from error
    return bound


def judge(name: str, function: RewardFunction, prompt: Prompt, answer: Answer) -> Reward:
    """The reward of one answer. Whatever fails is an Outcome.ERROR, never a score of 0 (invariant 11).

    Errors: InvalidRequest alone, when the prompt lacks its ground truth.
    """
    try:
        verdict = function(prompt, answer)
    except InvalidRequest:
        raise
    except Exception as error:
        verdict = Verdict(value=0.0, outcome=Outcome.ERROR, detail=f"{type(error).__name__}: {error}")
    return Reward(name=name, value=verdict.value, outcome=verdict.outcome, detail=verdict.detail[:MAX_DETAIL])


def _invalid(detail: str) -> Verdict:
    return Verdict(value=0.0, outcome=Outcome.INVALID_ANSWER, detail=detail)
