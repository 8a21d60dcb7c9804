"""Comparisons without computer algebra give the results of the comparison with it."""

from fractions import Fraction
from itertools import product

import pytest
from math_verify import parse, verify
from slipstream.answers.equality import equal
from slipstream.answers.exact import exactly_equal, has_quotient
from slipstream.answers.latex import parse_answer
from slipstream.answers.latex_input import UnsupportedExpression, normalize
from slipstream.answers.latex_values import Leaf

NUMBERS = (
    *(
        "2",
        "-7",
        "0.5",
        "1.4142136",
        "3.141593",
        r"\frac{1}{2}",
        r"\frac{3\sqrt{2}}{6}",
        r"\frac{1}{\sqrt{2}}",
    ),
    *(
        r"\sqrt{2}",
        r"2^{\frac{1}{2}}",
        r"\pi",
        r"2\pi",
        r"\frac{22}{7}",
        "10^{20}",
        "10^{20}+1",
        r"\ln(2)",
        "2!",
    ),
    *(r"\sqrt[3]{8}", r"\cos(\pi)", "1+i", "i^2", "50\\%", "e^{2}", "0.333333", r"\frac{1}{3}", r"\infty"),
)
FUNCTIONS = (
    "x^2-1",
    "(x-1)(x+1)",
    "x^2+1",
    r"\sqrt{x^2}",
    "x",
    "x+y",
    "y+x",
    r"\frac{x^2}{x}",
    "2x",
    r"\sin(x)",
)


ONLY_HERE = {frozenset({r"\cos(\pi)", "i^2"}), frozenset({"x", r"\frac{x^2}{x}"})}
"""Equal pairs that math-verify calls different."""


@pytest.mark.answers
@pytest.mark.parametrize("expressions", [NUMBERS, FUNCTIONS], ids=["numbers", "functions"])
def test_expressions_are_equal_as_they_are_for_math_verify(expressions: tuple[str, ...]) -> None:
    theirs = {text: parse(f"${text}$", parsing_timeout=None) for text in expressions}
    for one, other in product(expressions, repeat=2):
        alike = verify(theirs[one], theirs[other], timeout_seconds=None)
        expected = alike or frozenset({one, other}) in ONLY_HERE
        assert equal(normalize(one), normalize(other), digits=6) is expected, (one, other)


@pytest.mark.parametrize("text", ["007", "1234567890123456789", "0.10", "2.", ".5"])
def test_a_number_is_parsed_exactly(text: str) -> None:
    number = parse_answer(normalize(text))
    assert isinstance(number, Leaf)
    assert number.value == Fraction(text.rstrip("."))


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("391/17", True),
        (r"\frac{10}{2}", True),
        ("(1,-4/2)", True),
        ("2/4", False),
        (r"\frac{10}{2}=5", False),
        ("4/1", False),
        ("x^4/4", False),
        (r"\frac{gt^2}{2}", False),
        (r"r^3\frac{3}{2}", False),
    ],
)
def test_only_a_division_without_remainder_is_exact(text: str, exact: bool) -> None:
    assert has_quotient(normalize(text)) is exact


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (r"\dfrac{x}{2}", r"\frac{x}{2}", True),
        (r"\left(1, 2\right]", "(1,2]", True),
        (r"\{2,1,1\}", r"\{1, 2\}", True),
        (r"\{1,2\}", r"\{1,3\}", False),
        (r"\pi r", r"\pi  r", True),
        ("x y", "xy", None),
        (r"\{1,2\}", "(1,2)", False),
        (r"\{\}", r"\{1\}", None),
        ("50\\%", "0.5", True),
        ("50\\%", "5", False),
        ("100, 200", "200, 100", None),
    ],
)
def test_layout_and_exact_numbers_need_no_algebra(one: str, other: str, equal: bool | None) -> None:
    assert exactly_equal(one, other, digits=6) is equal


@pytest.mark.parametrize("text", ["x^2+10000x", r"x^{2}+99999", "2^3!+70000", r"e^x99999", r"y^\pi+12345"])
def test_numbers_beside_a_power_are_not_its_exponent(text: str) -> None:
    assert normalize(text)


@pytest.mark.parametrize(
    "text",
    [
        *("2^9999999", "2^{9999999}", "2^-9999999", "2^ 9999999", r"2^\frac{9999999}{2}", "2^|9999999|"),
        *(
            "10^{10^{10}}!",
            "10^10^10",
            "9^{9^9}",
            "2^{2^{2^{2^{2}}}}",
            "10^{10!}",
            r"2^\left(9999999\right)",
            "{10}^{10}^{10}",
        ),
    ],
)
def test_powers_that_would_take_too_long_are_errors_before_anything_is_computed(text: str) -> None:
    with pytest.raises(UnsupportedExpression):
        normalize(text)
