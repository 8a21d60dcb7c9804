"""Arithmetic: expressions with values worked out by hand, and hostile texts, which must fail quickly."""

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream.answers.arithmetic import MAX_DEPTH, InvalidExpression, check_countdown, evaluate


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3*8*1", Fraction(24)),
        ("2+3*4", Fraction(14)),
        ("(2+3)*4", Fraction(20)),
        ("8-3-2", Fraction(3)),
        ("8/4/2", Fraction(1)),
        ("8/(4/2)", Fraction(4)),
        ("1/3+1/3+1/3", Fraction(1)),
        ("3-8", Fraction(-5)),
        (" 2 × ( 9 ÷ 3 ) − 1 ", Fraction(5)),
        ("0*7", Fraction(0)),
    ],
)
def test_an_expression_has_its_exact_value(text: str, value: Fraction) -> None:
    assert evaluate(text)[0] == value


def test_the_numbers_are_reported_from_left_to_right() -> None:
    assert evaluate("(10-3)*3")[1] == (10, 3, 3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "a number is needed where `the end` stands"),
        ("9**9**9", r"a number is needed where `\*` stands"),
        ("9//2", "a number is needed where `/` stands"),
        ("-3+4", "a number is needed where `-` stands"),
        ("3+", "a number is needed where `the end` stands"),
        ("3 4", "`4` is left over"),
        ("(3", "not closed"),
        ("3)", r"`\)` is left over"),
        ("()", "a number is needed"),
        ("2(3)", r"`\(` is left over"),
        ("1/0", "division by zero"),
        ("1/(2-2)", "division by zero"),
        ("４+1", r"'\\uff14' is not part"),
        ("²", r"'\\xb2' is not part"),
        ("1e9", "'e' is not part"),
        ("1.5", r"'\.' is not part"),
        ("1_0", "'_' is not part"),
        ("1\n+1", r"'\\n' is not part"),
        ("0x10", "'x' is not part"),
        ("__import__('os').system('id')", "'_' is not part"),
        ("3*8*1=24", "'=' is not part"),
        ("007", "leading zeros"),
        ("1234567890", "at most 9 digits"),
        ("1" * 5000, "5000 characters; at most 256"),
        ("1" * 1_000_000, "1000000 characters; at most 256"),
        ("(" * 100_000 + "1" + ")" * 100_000, "at most 256"),
        ("(" * 100 + "1" + ")" * 100, "more than 32 parentheses"),
    ],
)
def test_a_text_that_is_not_an_expression_is_an_error_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidExpression, match=reason):
        evaluate(text)


def test_the_deepest_allowed_parentheses_are_parsed() -> None:
    assert evaluate("(" * MAX_DEPTH + "7" + ")" * MAX_DEPTH)[0] == 7


def test_the_largest_expression_within_the_bounds_is_exact() -> None:
    assert evaluate("*".join(["999999999"] * 25))[0] == 999999999**25


Tree = tuple[str, Fraction | None]  # fully parenthesised text; None where it divides by zero


def joined(parts: tuple[Tree, str, Tree]) -> Tree:
    (left_text, left), sign, (right_text, right) = parts
    text = f"({left_text}{sign}{right_text})"
    if left is None or right is None or (sign == "/" and right == 0):
        return text, None
    values = {"+": left + right, "-": left - right, "*": left * right, "/": left / (right or 1)}
    return text, values[sign]


numbers = st.integers(0, 99).map(lambda number: (str(number), Fraction(number)))
trees = st.recursive(
    numbers, lambda below: st.tuples(below, st.sampled_from("+-*/"), below).map(joined), max_leaves=12
)


@given(trees)
def test_any_nesting_has_the_value_of_its_tree_or_divides_by_zero(tree: Tree) -> None:
    text, value = tree
    if value is None:
        with pytest.raises(InvalidExpression, match="division by zero"):
            evaluate(text)
    else:
        assert evaluate(text)[0] == value


@given(st.text(max_size=300))
def test_any_text_is_a_value_or_an_invalid_expression(text: str) -> None:
    with contextlib.suppress(InvalidExpression):
        assert isinstance(evaluate(text)[0], Fraction)


@pytest.mark.parametrize(
    ("expression", "right"),
    [
        ("3*8*1", True),
        ("3*8", True),
        ("8*3/1", True),
        ("3*8+1", False),
        ("24", False),
        ("12*2", False),
        ("3*8*1*1", False),
        ("8+8+8", False),
    ],
)
def test_a_countdown_solution_uses_each_number_at_most_once(expression: str, right: bool) -> None:
    assert check_countdown(expression, [3, 8, 1], 24) is right


def test_a_number_that_occurs_twice_may_be_used_twice() -> None:
    assert check_countdown("5*5", [5, 5, 2], 25)


def test_a_division_with_a_remainder_is_not_rounded() -> None:
    assert not check_countdown("7/2", [7, 2], 3)
