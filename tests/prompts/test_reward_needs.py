"""The fields of a prompt that each kind of reward needs."""

import pytest
from slipstream.config import parse_config
from slipstream.prompts.reward_needs import unmet_need
from slipstream.records import Prompt


def reason_for(kind: str, answer: str, **arguments: object) -> str:
    (reward,) = parse_config({"rewards": [{"name": kind, **arguments}]}).rewards
    fields = {"schema": '{"type": 7}', "good": '{"type": "object"}'}
    return unmet_need(reward, Prompt(prompt_id="p", task="t", text="?", answer=answer, fields=fields))


@pytest.mark.parametrize(
    ("kind", "answer", "arguments", "reason"),
    [
        ("exact_match", " ", {}, "has no `answer`"),
        ("numeric_match", "twelve", {}, "has the answer 'twelve', which cannot be read"),
        ("math", "9^{9^{9}}", {}, "a power of a power of numbers"),
        ("math", "1 2", {}, "two numbers side by side"),
        ("json_schema", "", {"schema_field": "schema"}, "has in field `schema`: not a JSON schema"),
        ("json_schema", "", {"schema_field": "none"}, "has in field `none`: no JSON: nothing is there"),
    ],
)
def test_a_prompt_that_a_reward_cannot_score_has_a_reason(
    kind: str, answer: str, arguments: dict[str, object], reason: str
) -> None:
    assert reason in reason_for(kind, answer, **arguments)


@pytest.mark.parametrize(
    ("kind", "answer", "arguments"),
    [
        ("exact_match", "x", {}),
        ("numeric_match", "1,234", {}),
        ("math", r"\frac{1}{2}", {}),
        ("json_schema", "", {"schema_field": "good"}),
        ("repetition", "", {}),
    ],
)
def test_a_prompt_with_all_that_a_reward_needs_has_no_reason(
    kind: str, answer: str, arguments: dict[str, object]
) -> None:
    assert reason_for(kind, answer, **arguments) == ""
