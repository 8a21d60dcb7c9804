"""Thousands of generated answers with known correctness: each is scored correctly, for any seed."""

from importlib import import_module
from types import ModuleType

import pytest
from slipstream.answers.equality import warm_up
from slipstream.answers.latex_input import UnsupportedExpression, normalize

SEEDS = range(1, 4)


@pytest.fixture(scope="module")
def answers() -> ModuleType:
    """Import the benchmark."""
    warm_up()
    return import_module("benchmarks.math_answers.__main__")


def wrong(answers: ModuleType, seed: int, *, seeds_per_kind: int) -> list[object]:
    every = answers.cases(seed, seeds_per_kind=seeds_per_kind)
    return [case for case in every if answers.ours(case.truth, case.answer) is not case.right]


def test_a_few_generated_answers_of_each_kind_are_scored_correctly(answers: ModuleType) -> None:
    assert not wrong(answers, 0, seeds_per_kind=2)


@pytest.mark.answers
@pytest.mark.parametrize("seed", SEEDS)
def test_thousands_of_generated_answers_are_scored_correctly(answers: ModuleType, seed: int) -> None:
    assert len(list(answers.cases(seed))) > 10_000
    assert not wrong(answers, seed, seeds_per_kind=30)


def too_large(answer: str) -> bool:
    """Return whether the answer exceeds the limits of a sum or an exponent, with or without `computed`."""
    try:
        normalize(answer)
    except UnsupportedExpression as refused:
        return "over 1000" in str(refused) or "more than 5000" in str(refused)
    return False


@pytest.mark.answers
def test_uncomputed_answers_are_correct_without_computed(answers: ModuleType) -> None:
    cases = [case for case in answers.cases(4) if case.family == "uncomputed" and not too_large(case.answer)]
    assert len(cases) > 600
    assert not [case for case in cases if not answers.ours(case.truth, case.answer, computed=False)]


@pytest.mark.answers
def test_generated_answers_are_scored_better_than_by_math_verify_alone(answers: ModuleType) -> None:
    every = list(answers.cases(5, seeds_per_kind=3))
    graders = {"ours": answers.ours, "math-verify": answers.math_verify_alone}
    counted = answers.counted(graders, every)
    assert counted["ours"].total() == 0
    assert counted["math-verify"].total() > 0  # else the generated answers are too easy
