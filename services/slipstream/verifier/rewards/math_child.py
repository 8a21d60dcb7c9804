"""The reward `math` in a child process, where algebra may be slow, and is ended when it is."""

from slipstream.answers.cpu_limit import cpu_limit
from slipstream.answers.equality import equal, warm_up
from slipstream.answers.latex import parse_answer
from slipstream.answers.latex_input import UnsupportedExpression
from slipstream.records import Prompt
from slipstream.verifier.reward import Answer, UnusableGroundTruth, Verdict, invalid


def score(prompt: Prompt, answer: Answer, *, digits: int, computed: bool, seconds: float) -> Verdict:
    """1 when the readable answer is equal to the readable ground truth.

    Errors: UnusableGroundTruth; TooSlow after `seconds` of a core.
    """
    with cpu_limit(seconds):
        try:
            parse_answer(prompt.answer)
        except UnsupportedExpression as error:
            raise UnusableGroundTruth(f"prompt {prompt.prompt_id}: `answer`: {error}") from error
        try:
            return Verdict(value=float(equal(prompt.answer, answer.text, digits=digits, computed=computed)))
        except UnsupportedExpression as error:
            return invalid(str(error))


warm_up()  # once a child, before it says that it is ready
