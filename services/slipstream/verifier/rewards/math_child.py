"""The function of the reward `math` that runs in a child process: algebra by SymPy."""

from slipstream.answers import equality, latex, latex_input
from slipstream.answers.cpu_limit import cpu_limit
from slipstream.records import Prompt
from slipstream.verifier.reward import Answer, UnusableGroundTruth, Verdict, invalid


def score(prompt: Prompt, answer: Answer, *, digits: int, computed: bool, seconds: float) -> Verdict:
    """Return 1 if the answer equals the ground truth, else 0. Both were accepted by `readable`.

    Errors: UnusableGroundTruth; TooSlow after `seconds` of CPU time.
    """
    with cpu_limit(seconds):
        try:
            latex.parse_answer(prompt.answer)
        except latex_input.UnsupportedExpression as error:
            raise UnusableGroundTruth(f"`answer`: {error}", prompt_id=prompt.prompt_id) from error
        try:
            return Verdict(
                value=float(equality.equal(prompt.answer, answer.text, digits=digits, computed=computed))
            )
        except latex_input.UnsupportedExpression as error:
            return invalid(str(error))


equality.warm_up()  # in each child, before it reports that it is ready
