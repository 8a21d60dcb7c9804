"""A policy that is to judge its own answers, looked at when the run is validated."""

import re

import pytest
from slipstream.cli.validate import find_problems
from slipstream.config import parse_config


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "rewards.1.question: has up to .* no answer fits the model's context of 128"),
        ({"question": "{prompt}{answer}?"}, None),
        (
            {"question": "{prompt}{answer}" + "?" * 100},
            "rewards.1.question: leaves .* longer answers are invalid",
        ),
        ({"question": "{answer}?", "verdicts": ["right", "rubbish"]}, "rewards.1.verdicts: are 'right' and"),
    ],
)
def test_a_policy_that_cannot_be_asked_about_its_answers_is_said(
    given: dict[str, object], problem: str | None
) -> None:
    rewards = [{"name": "exact_match"}, {"name": "self_judge", **given}]
    found = [str(each) for each in find_problems(parse_config({"rewards": rewards}), gpus="note")]
    said = [each for each in found if each.startswith("rewards.")]
    assert not said if problem is None else re.match(problem, said[0]), found
