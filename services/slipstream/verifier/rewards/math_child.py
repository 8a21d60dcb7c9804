"""The function of the reward `math` that runs in a child process: algebra by SymPy."""

from slipstream.answers.cpu_limit import cpu_limit
from slipstream.answers.equality import equal, warm_up
from slipstream.answers.latex import parse_answer
from slipstream.answers.latex_input import UnsupportedExpression
from slipstream.records import Prompt
from slipstream.verifier.reward import Answer, UnusableGroundTruth, Verdict, invalid


def score(prompt: Prompt, answer: Answer, *, digits: int, computed: bool, seconds: float) -> Verdict:
    """Return 1 if the answer equals the ground truth, else 0. Both were accepted by `readable`.

    Errors: UnusableGroundTruth; TooSlow after `seconds` of CPU time.
    """
    with cpu_limit(seconds):
        try:
            parse_answer(prompt.answer)
        except UnsupportedExpression as error:
            raise UnusableGroundTruth(f"`answer`: {error}", prompt_id=prompt.prompt_id) from error
        try:
            return Verdict(value=float(equal(prompt.answer, answer.text, digits=digits, computed=computed)))
        except UnsupportedExpression as error:
            return invalid(str(error))


warm_up()  # in each child, before it reports that it is ready
