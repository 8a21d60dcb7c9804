"""Rewards for the form of a completion, of a single one and within its group."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
from slipstream.config import ConfigError
from slipstream.config.rewards import (
    DiversityConfig,
    FormatConfig,
    JsonSchemaConfig,
    LanguageConsistencyConfig,
    LengthConfig,
    NoRepeatConfig,
    RepetitionConfig,
    RewardSection,
)
from slipstream.records import FinishReason, Outcome, Prompt, Reward
from slipstream.verifier.reward import Answer, UnusableGroundTruth
from slipstream.verifier.rewards.language_consistency import score as score_language
from verifier.scoring import Bench, answer, scores

SCORE, INVALID = Outcome.SCORE, Outcome.INVALID_ANSWER
PROMPT = Prompt(prompt_id="row-7", task="t", text="?", answer="")
HOSTILE = (
    "", "\0", "a" * 1_000_000, "a " * 500_000,
    "\ud800", "\u202e46", r"\(" * 100_000, "```" * 80_000, "$" * 250_000,
    "<think>" * 30_000, "\\boxed{" * 30_000, "[" * 60_000, "9" * 5_000,
)  # fmt: skip


def values(config: RewardSection, *texts: str) -> list[float]:
    return [round(component.value, 6) for component in scores(config, PROMPT, *map(answer, texts))]


def one(config: RewardSection, text: str) -> Reward:
    (component,) = scores(config, PROMPT, answer(text))
    return component


def test_tags_have_to_occur_once_in_order_and_not_be_empty() -> None:
    form = FormatConfig(name="format", tags=("think", "answer"))
    assert values(
        form,
        "<think>a</think> <answer>b</answer>",
        "<answer>b</answer><think>a</think>",
        "<think>a</think><answer>b</answer><answer>c</answer>",
        "<think><answer>b</answer></think>",
        "<think></think><answer>b</answer>",
        "<think>a</think>",
    ) == [1, 0, 0, 0, 0, 0]


def test_a_box_of_another_kind_does_not_count() -> None:
    form = FormatConfig(name="format", boxed=True)
    assert values(form, r"\boxed{} \fbox{1}", r"\boxed{1} \fbox{", r"\fbox{1}") == [0, 1, 0]


def test_a_box_has_to_occur_once_closed_and_not_empty() -> None:
    form = FormatConfig(name="format", boxed=True)
    assert values(form, r"\boxed{\frac{1}{2}}", r"\boxed{1", r"\boxed{}", r"\boxed{1}\boxed{1}", "1") == [
        1,
        0,
        0,
        0,
        0,
    ]


@pytest.mark.parametrize(
    ("tokens", "soft", "linear"), [(0, 0, 0), (100, 0, 0), (150, -0.5, -0.5), (300, -1, -2)]
)
def test_the_penalty_of_a_completion_is_proportional_to_its_excess_length(
    tokens: int, soft: float, linear: float
) -> None:
    long = Answer(text="x", tokens=tokens, finish_reason=FinishReason.LENGTH)
    arguments: dict[str, Any] = {"name": "length", "safe_tokens": 100, "max_tokens": 200}
    assert scores(LengthConfig(**arguments), PROMPT, long)[0].value == soft
    assert scores(LengthConfig(**arguments, shape="linear"), PROMPT, long)[0].value == linear


LATIN, HAN = ("Latin",), ("Han",)


def shares(scripts: Sequence[str], *texts: str) -> list[float]:
    return [
        round(component.value, 6)
        for component in score_language(PROMPT, [*map(answer, texts)], scripts=scripts)
    ]


def test_language_consistency_is_the_share_of_letters_outside_of_code_and_latex() -> None:
    latin = LanguageConsistencyConfig(name="language_consistency")
    assert values(latin, "abc", "ab 中文", "中文") == [1, 0.5, 0]
    japanese = LanguageConsistencyConfig(name="language_consistency", scripts=("Han", "Hiragana", "Katakana"))
    assert values(japanese, "これは水", "water") == [1, 0]
    assert one(latin, "1 + 1 = `x`").outcome is INVALID


@pytest.mark.parametrize(
    "aside",
    [
        "`print(x)`", "```python\nfor x in y:\n    print(x)\n```", "$x^2 + y$", "$$\\int f$$", r"\(a + b\)",
        r"\[ \frac{a}{b} \]", r"\alpha \beta", "https://example.org/a?b=c", "<think>x</think>", "$α + β$",
        "$𝑥$",
    ],
)  # fmt: skip
def test_code_formulas_links_and_tags_do_not_count_as_language(aside: str) -> None:
    letters = aside.count("x</think>")  # the text between two tags counts
    assert shares(HAN, f"中文 {aside} 文") == [round(3 / (3 + letters), 6)]
    assert shares(LATIN, f"ab {aside} c") == [1]


@pytest.mark.parametrize("opening", ["`", "$", "$$", "```", r"\(", r"\[", "\\", r"\$", "<", "`` "])
def test_an_unclosed_element_hides_no_text(opening: str) -> None:
    assert shares(LATIN, f"a {opening}中文中", f"a {opening}中\n文 中") == [0.25, 0.25]
    assert shares(HAN, f"中 {opening} the quick brown") == [pytest.approx(1 / 14, abs=1e-6)]


def test_a_link_ends_at_a_letter_of_another_script() -> None:
    assert shares(LATIN, "a https://中文中", "a https://example.org/中文中") == [0.666667, 0.25]


@pytest.mark.parametrize("pair", ["`{}`", "```{}```", "${}$", "$${}$$", r"\({}\)", r"\[{}\]"])
def test_prose_inside_a_closed_element_counts(pair: str) -> None:
    assert shares(LATIN, f"abc {pair.format('中文中')}") == [0.5]
    prose = "we add the two numbers and then we see a sum"
    assert shares(HAN, f"中 {pair.format(prose)}") == [round(1 / (1 + len(prose.replace(" ", ""))), 6)]
    assert shares(HAN, rf"中 \{prose.replace(' ', ' ' + chr(92))}")[0] < 0.1


def test_repetition_is_the_share_of_repeated_trigrams() -> None:
    again = RepetitionConfig(name="repetition")
    assert values(again, "a b c d", "a b c a b c", "a b", "x " * 102) == [0, -0.25, 0, -0.99]
    assert one(again, "a" * 3_200).value == pytest.approx(-0.989796, abs=1e-6)


@pytest.mark.parametrize(
    ("duplicates", "expected"), [("later", [1, 0, 1]), ("all", [0, 0, 1]), ("share", [0.5, 0.5, 1])]
)
def test_duplicates_in_a_group_have_lower_scores(duplicates: Any, expected: list[float]) -> None:
    assert values(NoRepeatConfig(name="no_repeat", duplicates=duplicates), "a b", " a  b", "A b") == expected


def test_diversity_is_the_share_of_unique_ngrams() -> None:
    assert values(DiversityConfig(name="diversity"), "a b c", "a b d", "e f") == [0.5, 0.5, 1]


@pytest.mark.parametrize(
    "config",
    [
        FormatConfig(name="format", tags=("think",), boxed=True),
        LanguageConsistencyConfig(name="language_consistency"),
        RepetitionConfig(name="repetition"),
        NoRepeatConfig(name="no_repeat"),
        DiversityConfig(name="diversity"),
    ],
)
def test_hostile_answers_get_a_verdict_in_range_quickly(config: RewardSection) -> None:
    started = time.monotonic()
    components = scores(config, PROMPT, *map(answer, HOSTILE))
    assert time.monotonic() - started < 5
    assert all(g.outcome in (SCORE, INVALID) and -1 <= g.value <= 1 for g in components)


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
NO_JSON = ['{"n": NaN}', '{"n": 1, "n": 2}', '{"n": 1} x', '```json\n{"n": 1}\n```', *HOSTILE]


def test_json_is_parsed_strictly_and_validated_by_its_schema() -> None:
    async def play() -> None:
        fixed = JsonSchemaConfig(name="fixed", kind="json_schema", json_schema=SCHEMA)
        per_row = JsonSchemaConfig(name="row", kind="json_schema", schema_field="schema", fenced=True)
        slow = Prompt(
            prompt_id="p", task="t", text="?", answer="", fields={"schema": '{"pattern": "^(a|a)+$"}'}
        )
        async with Bench([fixed, per_row]) as bench:

            async def judged(text: str, prompt: Prompt = slow) -> list[Reward]:
                return (await bench.scorer.score(prompt, [answer(text)]))[0]

            assert (await judged('{"n": 1}'))[0].value == 1
            assert (await judged('{"n": "1"}'))[0] == Reward(name="fixed", value=0, outcome=SCORE, detail="")
            for text in NO_JSON:
                assert (await judged(text))[0].value == 0
                assert (await judged(text))[0].outcome in (INVALID, SCORE) if text == "9" * 5_000 else INVALID
            assert (await judged('so:\n```json\n{"n": 1}\n```'))[1].value == 1
            assert (await judged('```\n"%s!"\n```' % ("a" * 60)))[1].outcome is INVALID
            with pytest.raises(UnusableGroundTruth, match="prompt row-7: field `schema`"):
                await judged("1", PROMPT)

    asyncio.run(play())


@pytest.mark.parametrize(
    "schema", [{"$ref": "http://127.0.0.1/x"}, {"items": {"$ref": "file:///etc/passwd"}}, {"type": 7}]
)
def test_an_invalid_schema_or_an_external_reference_is_a_configuration_error(schema: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"json_schema: .*(leads out of the schema|not a JSON schema)"):
        Bench([JsonSchemaConfig(name="json_schema", json_schema=schema)])


@pytest.mark.parametrize(
    "config",
    [
        RepetitionConfig(name="repetition"),
        DiversityConfig(name="diversity"),
        LanguageConsistencyConfig(name="language_consistency", scripts=("Latin",)),
    ],
    ids=lambda config: config.name,
)
def test_long_texts_do_not_block_the_event_loop(config: RewardSection) -> None:
    texts = [answer("ab cd " * 43_000 + str(number)) for number in range(8)]

    async def play() -> int:
        async with Bench([config]) as bench:
            judging = asyncio.create_task(bench.scorer.score(PROMPT, texts))
            turns = 0
            while not judging.done():
                await asyncio.sleep(0.002)
                turns += 1
            assert all(vector[0].outcome is SCORE for vector in judging.result())
            return turns

    assert asyncio.run(play()) > 10
