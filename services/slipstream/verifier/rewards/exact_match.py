"""Is the answer the ground truth, to the letter?"""

from slipstream.config.rewards.answers import ExactMatchConfig
from slipstream.types import Prompt
from slipstream.verifier.adapters import EachAnswer
from slipstream.verifier.ground_truth import expected_answer
from slipstream.verifier.reward import Answer, Reward, Verdict, invalid
from slipstream.verifier.rewards.extracting import extracting


def exact_match(config: ExactMatchConfig) -> Reward:
    """1 when the answer is the ground truth, white space around it aside. An empty answer is invalid."""

    def judge(prompt: Prompt, answer: Answer) -> Verdict:
        expected, given = expected_answer(prompt), answer.text.strip()
        if not given:
            return invalid("empty answer")
        return Verdict(value=float(given == expected or _same(given, expected, config)))

    return extracting(config, EachAnswer(judge), truth=expected_answer)


def _same(given: str, expected: str, config: ExactMatchConfig) -> bool:
    if config.ignore_spaces:
        given, expected = "".join(given.split()), "".join(expected.split())
    if config.ignore_case:
        given, expected = given.casefold(), expected.casefold()
    return given == expected
