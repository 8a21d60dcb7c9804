"""The reward `numeric_match`: whether the answer is the number of the ground truth."""

from fractions import Fraction

from slipstream.answers.number import NotANumber, read_number
from slipstream.config.rewards.answers import NumericMatchConfig
from slipstream.records import Prompt
from slipstream.verifier.adapters import EachAnswer
from slipstream.verifier.ground_truth import expected_number
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Answer, Reward, Verdict, invalid
from slipstream.verifier.rewards.extracting import extracting


def numeric_match(config: NumericMatchConfig, resources: Resources) -> Reward:
    """Make the reward. It compares fractions, and an answer that is no number is invalid."""
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
