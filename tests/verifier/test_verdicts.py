"""Verdicts that were wrong once: of schemas, of composed accents, of a dollar between two digits."""

import asyncio
from fractions import Fraction
from typing import Any

import pytest
from slipstream.answers.number import NotANumber, read_number
from slipstream.answers.strict_json import InvalidJson, check_schema, only_block, read_json
from slipstream.config import ConfigError
from slipstream.config.rewards import (
    ExactMatchConfig,
    JsonSchemaConfig,
    LengthConfig,
    NoRepeatConfig,
    RepetitionConfig,
)
from slipstream.records import FinishReason, Outcome, Prompt
from slipstream.verifier.reward import Answer, UnusableGroundTruth, Verdict
from slipstream.verifier.rewards.json_schema_child import score
from verifier.scoring import Bench, answer, scores

PROMPT = Prompt(prompt_id="row-7", task="t", text="?", answer="caf\u00e9")
NODE = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}


def by_schema(schema: dict[str, Any], text: str) -> Verdict:
    return score(PROMPT, answer(text), schema=schema, field=None, fenced=False)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"multipleOf": 0.01}, "19.99", 1),
        ({"multipleOf": 0.01}, "19.995", 0),
        ({"multipleOf": 0.1}, "9" * 399, 1),
        ({"multipleOf": 3}, "1e308", 0),
        ({"multipleOf": 2}, "1e308", 1),
        ({"enum": [1]}, "true", 0),
        (NODE, '{"next": {"next": {}}}', 1),
        (NODE, '{"next": {"other": 1}}', 0),
        (NODE, '{"next":' * 50 + "{}" + "}" * 50, 1),
    ],
)
def test_a_schema_compares_exact_numbers_and_follows_recursion_that_ends(
    schema: dict[str, Any], text: str, value: float
) -> None:
    assert by_schema(schema, text) == Verdict(value=value)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "#"}, "leads back to itself"),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#"}}}, "leads back to itself"),
        ({"$ref": "#/$defs/a"}, "ends nowhere"),
        ({"$ref": "#nowhere"}, "ends nowhere"),
        ({"$id": "http://127.0.0.1:9/", "$ref": "other.json"}, "leads out of the schema"),
    ],
)
def test_a_cyclic_or_missing_reference_of_a_schema_is_a_configuration_error(
    schema: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_schema(schema)
    with pytest.raises(ConfigError, match=message):
        Bench([JsonSchemaConfig(name="json_schema", json_schema=schema)])


def test_the_error_of_a_reference_that_only_some_answers_reach_names_the_row() -> None:
    with pytest.raises(UnusableGroundTruth, match="prompt row-7: a reference of the schema ends nowhere"):
        by_schema({"properties": {"a": {"$ref": "#/$defs/none"}}}, '{"a": 1}')


def test_a_number_beyond_the_range_of_floats_is_an_error() -> None:
    with pytest.raises(InvalidJson, match="beyond what a float holds"):
        read_json('{"n": -1e999}')


@pytest.mark.parametrize("fence", ["```json\n", "```JSON\n", "``` json\r\n", "```\n"])
def test_every_opening_of_a_block_of_json_is_accepted(fence: str) -> None:
    assert only_block(f"so: {fence}[1]\n```") == "[1]"


def test_composed_and_decomposed_accents_are_equal() -> None:
    two = "cafe\u0301"
    assert scores(ExactMatchConfig(name="exact_match"), PROMPT, answer(two))[0].value == 1
    assert [
        g.value for g in scores(NoRepeatConfig(name="no_repeat"), PROMPT, answer(PROMPT.answer), answer(two))
    ] == [
        1,
        0,
    ]


@pytest.mark.parametrize("text", [r"4\$6", "4$6", r"4\6"])
def test_digits_around_a_dollar_are_not_one_number(text: str) -> None:
    with pytest.raises(NotANumber):
        read_number(text)


@pytest.mark.parametrize("text", [r"\$46", "$46", "-$46", r"-\$46", "$46$", r"46\$"])
def test_dollars_around_a_number_are_ignored(text: str) -> None:
    assert abs(read_number(text)[0]) == Fraction(46)


def test_the_soft_overlong_penalty_has_the_values_of_the_paper() -> None:
    """The settings of DAPO: L_max 20480, L_cache 4096."""
    config = LengthConfig(name="length", safe_tokens=16384, max_tokens=20480)
    lengths = (1, 16384, 16385, 18432, 20480, 20481, 10**6)
    answers = [Answer(text="x", tokens=tokens, finish_reason=FinishReason.STOP) for tokens in lengths]
    expected = [0.0, 0.0, -1 / 4096, -0.5, -1.0, -1.0, -1.0]
    assert [component.value for component in scores(config, PROMPT, *answers)] == expected


def test_the_repetition_penalty_is_the_share_of_distinct_ngrams_minus_1() -> None:
    assert (
        scores(RepetitionConfig(name="r", kind="repetition"), PROMPT, answer("a b c " * 3))[0].value
        == 3 / 7 - 1
    )


def test_a_cached_verdict_of_math_depends_only_on_ground_truth_and_digits() -> None:
    from slipstream.config.rewards import MathConfig

    async def play() -> list[tuple[float, Outcome]]:
        configs = [
            MathConfig(name=f"m{digits}", kind="math", extract="whole", digits=digits) for digits in (2, 6)
        ]
        values = []
        async with Bench(configs) as bench:
            for truth, text in ((r"\sqrt{2}", "1.41"), (r"\sqrt{3}", "1.41"), (r"\sqrt{2}", "1.41")):
                prompt = Prompt(prompt_id=truth, task="t", text="?", answer=truth)
                values += [
                    (c.value, c.outcome) for c in (await bench.scorer.score(prompt, [answer(text)]))[0]
                ]
        return values

    one, none = (1.0, Outcome.SCORE), (0.0, Outcome.SCORE)
    assert asyncio.run(play()) == [one, none, none, none, one, none]
