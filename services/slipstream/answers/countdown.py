"""Whether an expression solves a Countdown puzzle."""

from collections import Counter
from collections.abc import Sequence

from slipstream.answers.expression import evaluate


def check_countdown(expression: str, numbers: Sequence[int], target: int) -> bool:
    """True when the expression equals the target and takes each of the numbers at most once.

    Errors: InvalidExpression when it cannot be read or divides by zero (see expression.py).
    """
    value, used = evaluate(expression)
    return value == target and Counter(used) <= Counter(numbers)
