"""Are two mathematical expressions equal? By math-verify, in a process that can be killed.

See Math-Verify 0.9, https://github.com/huggingface/Math-Verify. Its search for an expression in a text is
not used: an expression is read whole or not at all, so that no part of an answer can match.
"""

import logging
from functools import lru_cache
from typing import Any, Final

from latex2sympy2_extended.latex2sympy2 import normalize_latex
from math_verify import LatexExtractionConfig, verify
from math_verify.parser import parse_latex_cached

from slipstream.tasks.cpu_limit import cpu_limit
from slipstream.tasks.mathematics import Refused

NORMALIZATION: Final = LatexExtractionConfig().normalization_config
WARM: Final = (
    (r"\frac{1}{2}", "0.5"),
    (r"12\sqrt{3}", r"\sqrt{432}"),
    ("x^2+2x+1", "(x+1)^2"),
    ("(1,2]", "1<x"),
    (r"\{1,2\}", "2,1"),
    (r"2\pi", "6.2832"),
    ("x=3", r"3\text{ cm}"),
)
"""The first of each form costs a tenth of a second, and later ones a thousandth."""


def equal(expected: str, given: str, *, digits: int) -> bool:
    """Whether two readable expressions are equal, floats to `digits` decimals. Errors: Refused."""
    right, answer = parsed(expected), parsed(given)
    return bool(
        verify(right, answer, float_rounding=digits, allow_set_relation_comp=True, timeout_seconds=None)
    )


@lru_cache(maxsize=1024)
def parsed(expression: str) -> Any:
    """An expression of SymPy. Errors: Refused when it is none."""
    try:
        found = parse_latex_cached.__wrapped__(normalize_latex(expression, config=NORMALIZATION))
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        raise Refused(f"not an expression: {' '.join(str(error).split())[:80]!a}") from error
    if found is None:
        raise Refused("not an expression")
    return found


def warm_up() -> None:
    """Meet each form of expression once."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # its warnings are of a limit that it has not
    for expected, given in WARM:
        with cpu_limit(10.0):
            equal(expected, given, digits=6)
