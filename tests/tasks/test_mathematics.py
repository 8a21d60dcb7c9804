"""Mathematics without algebra where none is needed, and the same verdicts as with it."""

from itertools import product

import pytest
from latex2sympy2_extended.latex2sympy2 import normalize_latex
from math_verify import verify
from math_verify.parser import parse_latex_cached
from slipstream.tasks.equality import settled
from slipstream.tasks.exact import exactly_equal
from slipstream.tasks.latex import NORMALIZATION, parsed
from slipstream.tasks.mathematics import Refused, readable

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


@pytest.mark.parametrize("expressions", [NUMBERS, FUNCTIONS], ids=["numbers", "functions"])
def test_what_values_settle_is_what_a_simplification_would_say(expressions: tuple[str, ...]) -> None:
    known = 0
    for one, other in product(map(parsed, expressions), repeat=2):
        found = settled(one, other, digits=6)
        if found is not None:
            known += 1
            assert found == verify(one, other, allow_set_relation_comp=True, timeout_seconds=None), (
                one,
                other,
            )
    assert known > len(expressions) ** 2 / 2


@pytest.mark.parametrize(
    "text", [*NUMBERS, *FUNCTIONS, "007", "1234567890123456789", "x=3", r"(1,2]", "0.10"]
)
def test_numbers_are_read_as_the_slower_parser_reads_them(text: str) -> None:
    expression = readable(text)
    normal = normalize_latex(expression, config=NORMALIZATION)
    assert parsed(expression).n() == parse_latex_cached.__wrapped__(normal).n()  # it has fewer digits


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
    assert readable(text)


@pytest.mark.parametrize(
    "text",
    [
        *("2^9999999", "2^{9999999}", "2^-9999999", "2^ 9999999", r"2^\frac{9999999}{2}", "2^|9999999|"),
        *("10^{10^{10}}!", "10^10^10", "9^{9^9}", "10^{10!}", r"2^\left(9999999\right)", "{10}^{10}^{10}"),
    ],
)
def test_powers_that_take_for_ever_are_refused_before_anything_is_computed(text: str) -> None:
    with pytest.raises(Refused):
        readable(text)
