"""Functions and operators of LaTeX mathematics, and which operations leave something to compute."""

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
"""Commands for letters and symbols."""
_MARKS: Final = """
    overline bar vec hat tilde dot ddot widehat widetilde overrightarrow overleftrightarrow
    overarc wideparen
"""
ACCENTS: Final = frozenset(_MARKS.split())
"""Accents, which make another letter of a letter."""
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
"""Commands that end an argument without brackets."""


def matrix(value: Any) -> bool:
    """Return whether a value is a matrix."""
    return isinstance(value, sympy.MatrixBase)


def constant(value: Any) -> bool:
    """Return whether a value is a number: no matrix, no variables, no unknown functions."""
    return is_expression(value) and not value.free_symbols and not value.atoms(AppliedUndef)


def is_expression(value: Any) -> bool:
    """Return whether a value is an expression, and no matrix."""
    return isinstance(value, sympy.Expr) and not matrix(value)


def sum_unfinished(terms: Sequence[Any], total: Any) -> set[str]:
    """Return the uncomputed operations of a sum: of matrices, of two rational numbers, or of terms that
    combine."""
    if any(map(matrix, terms)):
        return {MATRICES} if len(terms) > 1 else set()
    if sum(map(_rational, terms)) > 1:
        return {ARITHMETIC}
    shrinks = all(map(constant, terms)) and len(sympy.Add.make_args(total)) < len(terms)
    return {ARITHMETIC} if shrinks else set()


def product_unfinished(above: Sequence[Any], below: Sequence[Any], *, scientific: bool) -> set[str]:
    """Return the uncomputed operations of a product `above` divided by a product `below`.

    A fraction of two integers counts as a number, reduced or not, unless it is an integer itself.
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
    are_integers = [factor.is_Integer for factor in (*numbers, *divisors)]
    if divisors and (not all(are_integers) or (numbers and numbers[0] % divisors[0] == 0)):
        return {ARITHMETIC}
    return set()


def power_unfinished(base: Any, exponent: Any, value: Any) -> set[str]:
    """Return the uncomputed operations of a power or root; a power of ten is scientific notation."""
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
    """Return the uncomputed operation of a function of numbers that SymPy could simplify."""
    if not all(map(constant, arguments)):
        return set()
    return set() if isinstance(value, sympy.Function) else {FUNCTION}


def _rational(value: Any) -> bool:
    return is_expression(value) and bool(value.is_Rational)
