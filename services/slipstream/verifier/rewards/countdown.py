"""Does an arithmetic expression reach the target with the given numbers?"""

from slipstream.answers.arithmetic import InvalidExpression, check_countdown
from slipstream.records import Prompt
from slipstream.verifier.ground_truth import countdown_puzzle
from slipstream.verifier.reward import Answer, Verdict, invalid


def countdown(prompt: Prompt, answer: Answer) -> Verdict:
    """1 when the expression reaches the target with the given numbers, each at most once."""
    numbers, target = countdown_puzzle(prompt)
    try:
        return Verdict(value=float(check_countdown(answer.text.strip(), numbers, target)))
    except InvalidExpression as error:
        return invalid(str(error))
