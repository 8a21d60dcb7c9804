"""Answers as data sets of mathematics have them: accepted when right in another writing, and only then."""

import time
from contextlib import suppress
from pathlib import Path

import pytest
from slipstream.answers.cpu_limit import cpu_limit
from slipstream.answers.equality import equal, warm_up
from slipstream.answers.exact import exactly_equal
from slipstream.answers.latex import parsed
from slipstream.answers.latex_input import UnsupportedExpression, readable

PAIRS = [
    tuple(line.split("\t"))
    for line in Path(__file__).with_name("math_answers.tsv").read_text(encoding="utf-8").splitlines()
]
LENIENT = [
    ("5", "7-2=5"),
    ("4", "x^2+y^2=4"),
    (r"3\text{ hours}", r"3\text{ minutes}"),
    ("C", "c"),
    ("2:1", "2"),
]
STRICT = [("3.14", r"\pi \approx 3.14"), ("5", "0=5"), ("(1,2,3)", r"\begin{pmatrix}1\\2\\3\end{pmatrix}")]


def accepted(truth: str, answer: str) -> bool:
    """As the reward does it: refuse, compare exactly, compute."""
    expected = readable(truth)
    try:
        given = readable(answer)
        same = exactly_equal(expected, given, digits=6)
        if same is not None:
            return same
        with cpu_limit(5.0):
            parsed(expected)
            return equal(expected, given, digits=6)
    except UnsupportedExpression:
        return False


def test_answers_are_accepted_when_they_are_right_and_only_then() -> None:
    warm_up()
    assert len(PAIRS) > 700
    assert not [pair for pair in PAIRS if accepted(pair[1], pair[2]) is not (pair[0] == "1")]


@pytest.mark.parametrize(("pairs", "value"), [(LENIENT, True), (STRICT, False)])
def test_what_the_documentation_calls_lenient_or_strict_is_so(
    pairs: list[tuple[str, str]], value: bool
) -> None:
    assert {accepted(*pair) for pair in pairs} == {value}


def test_every_ground_truth_of_the_table_can_be_read() -> None:
    for _, truth, _ in PAIRS:
        readable(truth)


@pytest.mark.parametrize("piece", [",", ".", "\\", " ", "5 abc ", r"\pm", "²", "0.1", r"\text{a", "(n+", "'"])
def test_no_piece_again_and_again_takes_long_to_read(piece: str) -> None:
    text = piece * (990 // len(piece)) + "x"
    before = time.process_time()
    with suppress(UnsupportedExpression):
        exactly_equal(readable(text), "5", digits=6)
    assert time.process_time() - before < 0.2


@pytest.mark.parametrize("text", [r"\left", r"\left\right", r"\,", "{}", r"\text{", "\\", "_", "^"])
def test_half_a_command_is_no_match_and_no_failure(text: str) -> None:
    assert not accepted("5", text)


def test_commas_between_thousands_say_nothing_and_those_of_a_list_do() -> None:
    same = [("2025", "n=2,025"), (r"5,000\pi", r"5000\pi"), (r"\frac{1,000}{3}", "1000/3")]
    assert {accepted(*pair) for pair in same} == {True}
    other = [(r"\{1,234\}", "1234"), ("(1,234)", "1234"), ("1,2,300", "12300"), ("500", "0,500")]
    assert {accepted(*pair) for pair in other} == {False}


def test_a_large_number_is_the_same_with_a_decimal_point_and_without() -> None:
    large = "602000000000000000000000"
    assert accepted(r"6.02\times 10^{23}", large)
    assert not accepted(r"6.02\times 10^{23}", large[:-1] + "1")


def test_letters_of_several_choices_may_be_a_text() -> None:
    assert accepted("A, C", r"\text{A, C}")
    assert not accepted("A, C", r"\text{A, B}")
