"""Answers from data sets of mathematics: a correct answer is accepted in any notation, a wrong one in
none."""

import time
from contextlib import suppress
from pathlib import Path

import pytest
from slipstream.answers.cpu_limit import cpu_limit
from slipstream.answers.equality import equal, warm_up
from slipstream.answers.exact import exactly_equal
from slipstream.answers.latex import parse_answer
from slipstream.answers.latex_input import UnsupportedExpression, normalize

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
    """Compare as the reward does: check the limits, compare exactly, then compute."""
    expected = normalize(truth)
    try:
        actual = normalize(answer)
        exact = exactly_equal(expected, actual, digits=6)
        if exact is not None:
            return exact
        with cpu_limit(5.0):
            parse_answer(expected)
            return equal(expected, actual, digits=6)
    except UnsupportedExpression:
        return False


def test_exactly_the_correct_answers_are_accepted() -> None:
    warm_up()
    assert len(PAIRS) > 700
    assert not [pair for pair in PAIRS if accepted(pair[1], pair[2]) is not (pair[0] == "1")]


@pytest.mark.parametrize(("pairs", "value"), [(LENIENT, True), (STRICT, False)])
def test_answers_are_as_lenient_and_strict_as_documented(pairs: list[tuple[str, str]], value: bool) -> None:
    assert {accepted(*pair) for pair in pairs} == {value}


def test_every_ground_truth_of_the_table_is_parsed() -> None:
    for _, truth, _ in PAIRS:
        normalize(truth)


@pytest.mark.parametrize("piece", [",", ".", "\\", " ", "5 abc ", r"\pm", "²", "0.1", r"\text{a", "(n+", "'"])
def test_a_text_of_one_piece_repeated_is_parsed_quickly(piece: str) -> None:
    text = piece * (990 // len(piece)) + "x"
    before = time.process_time()
    with suppress(UnsupportedExpression):
        exactly_equal(normalize(text), "5", digits=6)
    assert time.process_time() - before < 0.2


@pytest.mark.parametrize("text", [r"\left", r"\left\right", r"\,", "{}", r"\text{", "\\", "_", "^"])
def test_an_incomplete_command_is_unequal_and_raises_nothing(text: str) -> None:
    assert not accepted("5", text)


def test_commas_between_thousands_are_ignored_and_those_of_a_list_count() -> None:
    same = [("2025", "n=2,025"), (r"5,000\pi", r"5000\pi"), (r"\frac{1,000}{3}", "1000/3")]
    assert {accepted(*pair) for pair in same} == {True}
    other = [(r"\{1,234\}", "1234"), ("(1,234)", "1234"), ("1,2,300", "12300"), ("500", "0,500")]
    assert {accepted(*pair) for pair in other} == {False}


def test_a_large_number_equals_itself_with_a_decimal_point() -> None:
    large = "602000000000000000000000"
    assert accepted(r"6.02\times 10^{23}", large)
    assert not accepted(r"6.02\times 10^{23}", large[:-1] + "1")


def test_letters_of_a_multiple_choice_may_be_in_a_text_command() -> None:
    assert accepted("A, C", r"\text{A, C}")
    assert not accepted("A, C", r"\text{A, B}")
