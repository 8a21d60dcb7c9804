"""Is the answer the ground truth, to the letter?"""

from collections.abc import Sequence

from slipstream.config.rewards.answers import ExactMatchConfig
from slipstream.records import Prompt
from slipstream.verifier.ground_truth import expected_answer
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Answer, Reward, Verdict, invalid
from slipstream.verifier.rewards.canonical import beside_the_loop, canonical, longest_equivalent
from slipstream.verifier.rewards.extracting import extracting


def exact_match(config: ExactMatchConfig, resources: Resources) -> Reward:
    """The reward of a configured component."""
    return extracting(config, ExactMatch(config), truth=expected_answer)


class ExactMatch:
    """1 when the answer is the ground truth, white space around it aside. An empty answer is invalid.

    Letters with accents may be one character or two (Unicode NFC). Invariant: an answer is normalised only
    when it is short enough to be the ground truth.
    """

    def __init__(self, config: ExactMatchConfig) -> None:
        self._config = config

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """The verdicts, in order. Errors: UnusableGroundTruth."""
        expected = expected_answer(prompt)
        given = [answer.text.strip() for answer in answers]
        characters = len(expected) + sum(min(len(text), longest_equivalent(expected)) for text in given)
        return await beside_the_loop(lambda: self._verdicts(expected, given), characters=characters)

    async def close(self) -> None:
        """Nothing is held."""

    def _verdicts(self, expected: str, given: Sequence[str]) -> list[Verdict]:
        wanted = self._comparable(expected)
        longest = longest_equivalent(wanted)
        return [self._one(text, expected, wanted, longest) for text in given]

    def _one(self, given: str, expected: str, wanted: str, longest: int) -> Verdict:
        if not given:
            return invalid("empty answer")
        if given == expected:
            return Verdict(value=1.0)
        given = self._without_spaces(given)
        return Verdict(value=float(len(given) <= longest and self._comparable(given) == wanted))

    def _comparable(self, text: str) -> str:
        return canonical(self._without_spaces(text), ignore_case=self._config.ignore_case)

    def _without_spaces(self, text: str) -> str:
        return "".join(text.split()) if self._config.ignore_spaces else text
