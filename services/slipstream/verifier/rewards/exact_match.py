"""The reward `exact_match`: whether the answer is the ground truth, character by character."""

from collections.abc import Sequence

from slipstream.config.rewards.answers import ExactMatchConfig
from slipstream.records import Prompt
from slipstream.verifier.ground_truth import expected_answer
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Answer, Reward, Verdict, invalid
from slipstream.verifier.rewards.canonical import beside_the_loop, canonical, longest_equivalent
from slipstream.verifier.rewards.extracting import extracting


def exact_match(config: ExactMatchConfig, resources: Resources) -> Reward:
    """Make the reward."""
    return extracting(config, ExactMatch(config), truth=expected_answer)


class ExactMatch:
    """Scores 1 if the answer is the ground truth, without the white space around both. Empty is invalid.

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
