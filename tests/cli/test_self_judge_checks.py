"""The checks of a reward by the policy itself, when the run is validated."""

import re

import pytest
from slipstream.cli.validate import find_problems
from slipstream.config import parse_config


@pytest.mark.parametrize(
    ("settings", "problem"),
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
def test_a_policy_that_cannot_judge_its_answers_is_a_problem(
    settings: dict[str, object], problem: str | None
) -> None:
    rewards = [{"name": "exact_match"}, {"name": "self_judge", **settings}]
    problems_found = [str(each) for each in find_problems(parse_config({"rewards": rewards}), gpus="note")]
    reward_problems = [each for each in problems_found if each.startswith("rewards.")]
    assert not reward_problems if problem is None else re.match(problem, reward_problems[0]), problems_found
