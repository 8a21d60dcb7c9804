"""The rewards `exact_match`, `numeric_match` and `countdown`: whether a text or a number is right."""

from collections.abc import Sequence
from fractions import Fraction

from slipstream.answers.arithmetic import InvalidExpression, check_countdown
from slipstream.answers.number import NotANumber, read_number
from slipstream.config.rewards import CountdownConfig, ExactMatchConfig, NumericMatchConfig
from slipstream.records import Prompt
from slipstream.verifier.adapters import EachAnswer
from slipstream.verifier.ground_truth import countdown_puzzle, expected_answer, expected_number
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Answer, Reward, Verdict, invalid
from slipstream.verifier.rewards.canonical import beside_the_loop, canonical, longest_equivalent
from slipstream.verifier.rewards.extracting import extracting


def exact_match(config: ExactMatchConfig, resources: Resources) -> Reward:
    """Make the reward `exact_match`."""
    return extracting(config, ExactMatch(config), truth=expected_answer)


class ExactMatch:
    """Scores 1 if the answer is the ground truth, character by character. An empty one is invalid.

    The white space around both does not count.

    A letter with an accent may be one character or two (Unicode NFC).
    Invariant: an answer is normalised only if it is short enough to be the ground truth.
    """

    def __init__(self, config: ExactMatchConfig) -> None:
        self._config = config

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """Return the verdicts, in order. Errors: UnusableGroundTruth."""
        expected = expected_answer(prompt)
        texts = [answer.text.strip() for answer in answers]
        characters = len(expected) + sum(min(len(text), longest_equivalent(expected)) for text in texts)
        return await beside_the_loop(lambda: self._verdicts(expected, texts), characters=characters)

    async def close(self) -> None:
        """Do nothing: the reward holds nothing."""

    def _verdicts(self, expected: str, texts: Sequence[str]) -> list[Verdict]:
        wanted = self._comparable(expected)
        longest = longest_equivalent(wanted)
        return [self._one(text, expected, wanted, longest) for text in texts]

    def _one(self, text: str, expected: str, wanted: str, longest: int) -> Verdict:
        if not text:
            return invalid("empty answer")
        if text == expected:
            return Verdict(value=1.0)
        text = self._without_spaces(text)
        return Verdict(value=float(len(text) <= longest and self._comparable(text) == wanted))

    def _comparable(self, text: str) -> str:
        return canonical(self._without_spaces(text), ignore_case=self._config.ignore_case)

    def _without_spaces(self, text: str) -> str:
        return "".join(text.split()) if self._config.ignore_spaces else text


def numeric_match(config: NumericMatchConfig, resources: Resources) -> Reward:
    """Make the reward `numeric_match`. It compares fractions, and an answer that is no number is invalid."""
    absolute, relative = Fraction(config.absolute_tolerance), Fraction(config.relative_tolerance)

    def score(prompt: Prompt, answer: Answer) -> Verdict:
        expected, of_hundred = expected_number(prompt)
        try:
            number, percent = read_number(answer.text)
        except NotANumber as error:
            return invalid(str(error))
        allowed = max(absolute, relative * abs(expected))
        near = abs(number - expected) <= allowed
        if config.percent == "either" and percent is not of_hundred:
            near = near or abs(number * (100 if percent else Fraction(1, 100)) - expected) <= allowed
        return Verdict(value=float(near))

    return extracting(config, EachAnswer(score), truth=expected_number)


def countdown_reward(config: CountdownConfig, resources: Resources) -> Reward:
    """Make the reward `countdown`, which has no arguments."""
    return EachAnswer(countdown)


def countdown(prompt: Prompt, answer: Answer) -> Verdict:
    """Return 1 if the expression reaches the target with the given numbers, each at most once, else 0."""
    numbers, target = countdown_puzzle(prompt)
    try:
        return Verdict(value=float(check_countdown(answer.text.strip(), numbers, target)))
    except InvalidExpression as error:
        return invalid(str(error))
