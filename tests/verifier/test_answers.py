"""Rewards that compare with a ground truth: right, wrong, borderline and hostile answers."""

import asyncio
import time
from typing import Any

import pytest
from slipstream.config import ConfigError
from slipstream.config.rewards import ExactMatchConfig, MathConfig, NumericMatchConfig, RewardSection
from slipstream.records import Outcome, Prompt, Reward
from slipstream.verifier.reward import UnusableGroundTruth
from slipstream.verifier.scorer import MAX_ANSWER
from verifier.scoring import Bench, answer, scores

SCORE, INVALID = Outcome.SCORE, Outcome.INVALID_ANSWER
HOSTILE = (
    "",
    "\0",
    "4" * 1_000_000,
    "{" * 1_000_000,
    "\ud800",
    "\u202e64",
    "1e999999999",
    "9" * 5_000,
    "(" * 9_999,
)


def prompt(truth: str) -> Prompt:
    return Prompt(prompt_id="row-7", task="t", text="?", answer=truth)


def reward(config: RewardSection, truth: str, text: str) -> Reward:
    (component,) = scores(config, prompt(truth), answer(text))
    return component


def test_a_reward_that_extracts_an_answer_returns_it_and_other_rewards_do_not() -> None:
    wrong = reward(numeric(extract="boxed"), "4", r"so \boxed{3} is it")
    assert (wrong.value, wrong.answer) == (0.0, "3")
    assert reward(numeric(extract="answer_tag"), "4", "<answer> 4.0 </answer>").answer == " 4.0 "
    assert reward(numeric(extract="boxed"), "4", "no box").answer == ""
    assert reward(numeric(extract="whole"), "4", "4").answer == ""
    assert reward(numeric(extract="boxed"), "4", r"\boxed{" + 999 * "4" + "}").answer == MAX_ANSWER * "4"


def numeric(**arguments: Any) -> NumericMatchConfig:
    return NumericMatchConfig(name="numeric_match", **arguments)


@pytest.mark.parametrize(
    ("truth", "right"),
    [
        ("1234", "1,234"),
        ("0.5", "1/2"),
        ("1/2", "50%"),
        ("0.75", r"\frac{3}{4}"),
        ("1.75", "1 3/4"),
        ("100000", "1e5"),
        ("-0.0012", "−1.2 × 10^{-3}"),
        ("$12.50", "12.5"),
        ("0", "-0.0"),
    ],
)
def test_two_notations_of_one_number_match(truth: str, right: str) -> None:
    assert reward(numeric(), truth, right).value == 1


@pytest.mark.parametrize("wrong", ["147", "46.0000001", "-46", "45%", "4.6e2", "23"])
def test_a_different_number_does_not_match(wrong: str) -> None:
    assert (reward(numeric(), "46", wrong).value, reward(numeric(), "46", wrong).outcome) == (0, SCORE)


@pytest.mark.parametrize(
    "text", ["it is 46", "46 47", "4 6", "1,23", "0,046", "46 apples", "1/0", "٤٦", "０46", *HOSTILE]
)
def test_a_text_that_is_not_exactly_one_number_is_invalid(text: str) -> None:
    component = reward(numeric(), "46", text)
    assert (component.value, component.outcome) == (0, INVALID)


def test_a_tolerance_includes_its_limit() -> None:
    absolute, relative = numeric(absolute_tolerance=0.5), numeric(relative_tolerance=0.25)
    assert [g.value for g in scores(absolute, prompt("10"), *map(answer, ("10.5", "10.51", "9.5")))] == [
        1,
        0,
        1,
    ]
    assert [g.value for g in scores(relative, prompt("8"), *map(answer, ("10", "10.01", "6")))] == [1, 0, 1]


def test_percent_is_either_number_unless_only_the_fraction_is_allowed() -> None:
    assert reward(numeric(percent="fraction"), "50", "50%").value == 0
    assert reward(numeric(), "50", "50%").value == 1
    assert reward(numeric(), "50%", "0.5").value == 1
    assert reward(numeric(), "50%", "5").value == 0


@pytest.mark.parametrize(
    "text", [r"20\%", r"$20\%$", r"\(20\%\)", r"20\,\%", r"20\text{%}", r"20\%.", "20 percent", "20 %", "1/5"]
)
def test_a_percentage_is_parsed_in_every_notation_of_latex(text: str) -> None:
    assert reward(numeric(), r"20\%", text).value == 1
    assert reward(numeric(), "0.2", text).value == 1


@pytest.mark.parametrize(
    ("config", "text", "value"),
    [
        (numeric(extract="boxed"), r"5 then \boxed{\frac{1}{2}}", 1),
        (numeric(extract="boxed"), r"\boxed{0.5} no, \boxed{7}", 0),
        (numeric(extract="answer_tag"), "<answer>3</answer><answer> 0.5 </answer>", 1),
        (numeric(extract="pattern", extract_pattern=r"#### (.*)"), "#### 3\n#### 0.5", 1),
    ],
)
def test_the_last_answer_that_is_marked_counts(config: RewardSection, text: str, value: float) -> None:
    assert reward(config, "0.5", text).value == value


@pytest.mark.parametrize("text", ["0.5", r"\boxed{0.5", r"\boxed{0.5} \boxed{", *HOSTILE])
def test_a_text_without_a_marked_answer_is_invalid(text: str) -> None:
    assert reward(numeric(extract="boxed"), "0.5", text).outcome is INVALID


def test_a_search_without_an_end_is_stopped_soon_and_the_answer_is_invalid() -> None:
    started = time.monotonic()
    component = reward(numeric(extract="pattern", extract_pattern="(a|a)+b"), "1", "a" * 5_000)
    assert component.outcome is not SCORE
    assert time.monotonic() - started < 5


def test_an_invalid_pattern_of_an_answer_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="extract_pattern: not a usable regular expression"):
        Bench([numeric(extract="pattern", extract_pattern="(")])


def test_exact_match_can_ignore_case_and_spaces() -> None:
    loose = ExactMatchConfig(name="exact_match", ignore_case=True, ignore_spaces=True)
    components = scores(loose, prompt("New York"), *map(answer, ("new  york", "NewYork", "York")))
    assert [g.value for g in components] == [1, 1, 0]


RIGHT = [
    ("42", "42"),
    (r"\frac{1}{2}", "0.5"),
    ("1.5", "1 1/2"),
    ("1234", "1,234"),
    ("3,000", r"3\,000"),
    (r"\{1,2\}", r"\{2,1\}"),
    ("(1,2]", r"1<x\le 2"),
    ("5", r"5\text{ cm}"),
    ("x^2+2x+1", "(x+1)^2"),
    (r"2\pi", "$2π$"),
    ("3", "x=3"),
    (r"\boxed{7}", "7."),
]
WRONG = [
    ("(1,2)", "(1,3)"),
    ("1/2", "2/3"),
    ("42", "43"),
    ("5", "5,6"),
    ("5", r"\{5,6\}"),
    ("(1,2)", "[1,2]"),
    ("5", "x"),
    ("2", "1e2"),
    ("1/3", "0.33"),
]
REFUSED = [
    "10/2",
    "5 6",
    "it is 5 3",
    "10^{10^{10}}!",
    "9^{9^{9^{9}}}",
    "2^{99999999}",
    "99999!",
    "5!!!!!",
    r"\binom{100000}{50000}",
    r"\frac{1}{" * 90 + "}" * 90,
    r"\frac12" * 70,
    *HOSTILE,
]
SLOW = r"\sin x+\cos(3x)<\frac{1}{2}"


def test_math_distinguishes_right_wrong_invalid_and_slow_answers() -> None:
    """All cases share one pool, because its start takes seconds."""

    async def play() -> None:
        async with Bench([MathConfig(name="math", extract="whole")]) as bench:

            async def judged(truth: str, text: str) -> Reward:
                return (await bench.scorer.score(prompt(truth), [answer(text)]))[0][0]

            for truth, text in RIGHT:
                assert (await judged(truth, text)).value == 1, (truth, text)
            for truth, text in WRONG:
                component = await judged(truth, text)
                assert (component.value, component.outcome) == (0, SCORE), (truth, text)
            waits = bench.sample("wait_seconds_count", what="worker")
            for text in REFUSED:
                component = await judged("5", text)
                assert (component.value, component.outcome) == (0, INVALID), text[:40]
            assert waits
            assert bench.sample("wait_seconds_count", what="worker") == waits  # no further child was used
            component = await judged("(1,2)", SLOW)
            assert (component.value, component.outcome) == (0, INVALID)
            assert (await judged("0.5", r"\frac{1}{2}")).value == 1
            assert (await judged("5", "2+3")).outcome is INVALID  # answers may not leave sums uncomputed
            with pytest.raises(UnusableGroundTruth, match="prompt row-7: `answer`: not an expression"):
                await judged(r"\frac{1}", "1")
            assert bench.lines.getvalue().count("prompt cannot be judged") == 1

    asyncio.run(play())


@pytest.mark.parametrize(
    ("config", "truth", "reason"),
    [
        (numeric(), "", "prompt row-7: no `answer`"),
        (numeric(), "twelve", "prompt row-7: `answer`: 'twelve' is not one number"),
    ],
)
def test_the_error_of_an_unreadable_ground_truth_names_its_row(
    config: RewardSection, truth: str, reason: str
) -> None:
    with pytest.raises(UnusableGroundTruth, match=reason):
        reward(config, truth, "12")


@pytest.mark.parametrize(
    "config",
    [
        ExactMatchConfig(name="r", extract="boxed"),
        ExactMatchConfig(name="r", extract="answer_tag"),
        numeric(extract="pattern", extract_pattern="= (.*)"),
        MathConfig(name="r"),
    ],
    ids=["boxed", "answer_tag", "pattern", "math"],
)
@pytest.mark.parametrize("text", ["nothing to be found", ""])
def test_a_missing_ground_truth_is_reported_also_for_an_answer_that_lacks_its_marks(
    config: RewardSection, text: str
) -> None:
    with pytest.raises(UnusableGroundTruth, match="prompt row-7: no `answer`"):
        reward(config, "", text)
