"""Is the answer the ground truth, to the letter?"""

from slipstream.types import Prompt
from slipstream.verifier.ground_truth import expected_answer
from slipstream.verifier.reward import Answer, Verdict, invalid


def exact_match(prompt: Prompt, answer: Answer) -> Verdict:
    """1 when the answer is the ground truth, white space around it aside. An empty answer is invalid."""
    expected, given = expected_answer(prompt), answer.text.strip()
    return Verdict(value=float(given == expected)) if given else invalid("empty answer")
