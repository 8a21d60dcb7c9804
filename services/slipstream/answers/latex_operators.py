"""Functions and operators of LaTeX mathematics, and which of their results are still to be computed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import sympy
from sympy.core.function import AppliedUndef

ARITHMETIC: Final = "arithmetic of numbers"
FUNCTION: Final = "a function of a number"
COUNTING: Final = "a factorial or binomial coefficient of numbers"
MATRICES: Final = "arithmetic of matrices"

RELATIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("=",), "="), **dict.fromkeys(("<", "lt"), "<"), **dict.fromkeys((">", "gt"), ">"),
    **dict.fromkeys(("le", "leq", "leqslant"), "<="), **dict.fromkeys(("ge", "geq", "geqslant"), ">="),
    **dict.fromkeys(("ne", "neq"), "!="), **dict.fromkeys(("approx", "simeq"), "~"), "in": "in",
}  # fmt: skip
SETS: Final[Mapping[str, sympy.Set]] = {
    "N": sympy.S.Naturals, "Z": sympy.S.Integers, "Q": sympy.S.Rationals,
    "R": sympy.S.Reals, "C": sympy.S.Complexes,
}  # fmt: skip
_LETTERS: Final = """
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi
    omicron rho varrho sigma varsigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda
    Xi Pi Sigma Upsilon Phi Psi Omega ell hbar partial nabla angle triangle star imath jmath aleph
    parallel perp odot sim cong
"""
GREEK: Final = frozenset(_LETTERS.split())
"""Commands that are letters or stand for a thing."""
_MARKS: Final = """
    overline bar vec hat tilde dot ddot widehat widetilde overrightarrow overleftrightarrow
    overarc wideparen
"""
ACCENTS: Final = frozenset(_MARKS.split())
"""Commands that make a letter another one."""
FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    **{name: getattr(sympy, name) for name in ("sin", "cos", "tan", "cot", "sec", "csc", "exp")},
    **{name: getattr(sympy, name) for name in ("sinh", "cosh", "tanh", "coth", "arg")},
    **{f"arc{name}": getattr(sympy, f"a{name}") for name in ("sin", "cos", "tan", "cot", "sec", "csc")},
    **{f"ar{name}": getattr(sympy, f"a{name}") for name in ("sinh", "cosh", "tanh")},
    **{f"arc{name}": getattr(sympy, f"a{name}") for name in ("sinh", "cosh", "tanh")},
    "ln": sympy.log, "Re": sympy.re, "Im": sympy.im, "sgn": sympy.sign, "sign": sympy.sign,
    "floor": sympy.floor, "ceil": sympy.ceiling, "Gamma": sympy.gamma,
}  # fmt: skip
INVERSES: Final[Mapping[str, str]] = {
    name: f"arc{name}" for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")
}
OF_MANY: Final[Mapping[str, Callable[..., Any]]] = {
    "gcd": sympy.gcd, "lcm": sympy.lcm, "max": sympy.Max, "min": sympy.Min,
}  # fmt: skip
OF_A_MATRIX: Final[Mapping[str, Callable[[Any], Any]]] = {
    "det": lambda matrix: matrix.det(),
    "tr": lambda matrix: matrix.trace(),
    "trace": lambda matrix: matrix.trace(),
    "rank": lambda matrix: sympy.Integer(matrix.rank()),
}
BIG: Final = frozenset({"int", "sum", "prod", "lim"})
NAMED: Final = frozenset({*FUNCTIONS, *OF_MANY, *OF_A_MATRIX, *BIG, "log", "lg"})
"""Commands that an argument without brackets ends at."""


def matrix(value: Any) -> bool:
    """Whether a value is a matrix."""
    return isinstance(value, sympy.MatrixBase)


def constant(value: Any) -> bool:
    """Whether a value is a number: neither a matrix nor something with letters or unknown functions."""
    return is_expression(value) and not value.free_symbols and not value.atoms(AppliedUndef)


def is_expression(value: Any) -> bool:
    """Whether a value is an expression that is no matrix."""
    return isinstance(value, sympy.Expr) and not matrix(value)


def sum_unfinished(terms: Sequence[Any], total: Any) -> set[str]:
    """What a sum leaves to do: of matrices, of two rational numbers, or of numbers that make fewer terms."""
    if any(map(matrix, terms)):
        return {MATRICES} if len(terms) > 1 else set()
    if sum(map(_rational, terms)) > 1:
        return {ARITHMETIC}
    shrinks = all(map(constant, terms)) and len(sympy.Add.make_args(total)) < len(terms)
    return {ARITHMETIC} if shrinks else set()


def product_unfinished(above: Sequence[Any], below: Sequence[Any], *, scientific: bool) -> set[str]:
    """What a product of factors, and a quotient by others, leave to do: of matrices or of numbers.

    A fraction of two whole numbers is a number, in whatever terms, unless it is a whole number itself.
    """
    if any(map(matrix, (*above, *below))):
        return {MATRICES} if sum(map(matrix, (*above, *below))) > 1 else set()
    numbers, divisors = (
        [factor for factor in side if _rational(factor) and abs(factor) != 1] for side in (above, below)
    )
    if scientific:
        return set()
    factors = (*above, *below)
    if (
        all(map(constant, factors))
        and not all(map(_rational, factors))
        and _rational(sympy.Mul(*above) / sympy.Mul(*below))
    ):
        return {ARITHMETIC}
    sums = [factor for factor in above if constant(factor) and isinstance(factor, sympy.Add)]
    if len(numbers) > 1 or len(divisors) > 1 or len(sums) > 1:
        return {ARITHMETIC}
    whole = [factor.is_Integer for factor in (*numbers, *divisors)]
    if divisors and (not all(whole) or (numbers and numbers[0] % divisors[0] == 0)):
        return {ARITHMETIC}
    return set()


def power_unfinished(base: Any, exponent: Any, value: Any) -> set[str]:
    """What a power or a root leaves to do; a power of ten is a number in scientific notation."""
    if matrix(base):
        return {MATRICES}
    if not constant(base) or not constant(exponent) or (base == 10 and exponent.is_Integer):
        return set()
    if value.is_Rational and not (base.is_Rational and exponent == 1):
        return {ARITHMETIC} if base != 1 else set()
    return (
        {ARITHMETIC} if exponent.is_Integer and abs(exponent) > 1 and isinstance(base, sympy.Add) else set()
    )


def function_unfinished(value: Any, *arguments: Any) -> set[str]:
    """A function of a number that has a simpler value than its name."""
    if not all(map(constant, arguments)):
        return set()
    return set() if isinstance(value, sympy.Function) else {FUNCTION}


def _rational(value: Any) -> bool:
    return is_expression(value) and bool(value.is_Rational)
