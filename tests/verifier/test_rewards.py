"""Reward functions: golden answers, hostile answers, and failures that are never a score."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream.config import ConfigError
from slipstream.config.rewards import CountdownConfig, ExactMatchConfig, FormatConfig, RewardSection
from slipstream.records import FinishReason, Outcome, Prompt, Reward
from slipstream.verifier.reward import UnusableGroundTruth
from verifier.scoring import Bench, answer, scores

SCORE, INVALID = Outcome.SCORE, Outcome.INVALID_ANSWER
EXACT = ExactMatchConfig(name="exact_match")
COUNTDOWN = CountdownConfig(name="countdown")


def addition() -> Prompt:
    return Prompt(prompt_id="p", task="addition", text="12+34=", answer="46")


def countdown(answer: str = "24", numbers: str = "3 8 1") -> Prompt:
    return Prompt(prompt_id="p", task="countdown", text="?", answer=answer, fields={"numbers": numbers})


def reward(
    config: RewardSection, prompt: Prompt, text: str, finish: FinishReason = FinishReason.STOP
) -> Reward:
    (component,) = scores(config, prompt, answer(text, finish))
    return component


def pattern(text: str) -> FormatConfig:
    return FormatConfig(name="format", pattern=text)


@pytest.mark.parametrize(
    ("text", "value", "outcome"),
    [
        ("46", 1, SCORE),
        (" 46\n", 1, SCORE),
        ("47", 0, SCORE),
        ("46.", 0, SCORE),
        ("046", 0, SCORE),
        ("４６", 0, SCORE),
        ("4 6", 0, SCORE),
        ("", 0, INVALID),
        (" \n\t", 0, INVALID),
        ("4" * 1_000_000, 0, SCORE),
    ],
)
def test_exact_match_is_equality_without_surrounding_space(text: str, value: float, outcome: Outcome) -> None:
    component = reward(EXACT, addition(), text)
    assert (component.name, component.value, component.outcome) == ("exact_match", value, outcome)


@given(st.text(max_size=20))
def test_exact_match_scores_one_only_for_the_ground_truth(text: str) -> None:
    assert (reward(EXACT, addition(), text).value == 1) is (text.strip() == "46")


@pytest.mark.parametrize(
    ("text", "value", "outcome"),
    [
        ("3*8*1", 1, SCORE),
        (" (3 × 8) ÷ 1\n", 1, SCORE),
        ("3*8+1", 0, SCORE),
        ("24", 0, SCORE),
        ("8+8+8", 0, SCORE),
        ("3/0", 0, INVALID),
        ("", 0, INVALID),
        ("9**9**9", 0, INVALID),
        ("__import__('os')", 0, INVALID),
        ("３*8", 0, INVALID),
        ("(" * 100_000, 0, INVALID),
        ("8" * 1_000_000, 0, INVALID),
        ("3*8*1=24", 0, INVALID),
    ],
)
def test_countdown_distinguishes_right_wrong_and_invalid_answers(
    text: str, value: float, outcome: Outcome
) -> None:
    component = reward(COUNTDOWN, countdown(), text)
    assert (component.value, component.outcome) == (value, outcome)
    assert bool(component.detail) is (outcome is INVALID)


def test_countdown_accepts_numbers_as_a_list() -> None:
    assert reward(COUNTDOWN, countdown(numbers="[3, 8, 1]"), "3*8").value == 1


@pytest.mark.parametrize(
    ("text", "value"), [("<a>4</a>", 1), ("<a>4</a> ", 0), ("x<a>4</a>", 0), ("", 0), ("<a>4</a>\n", 0)]
)
def test_format_matches_the_whole_unchanged_completion(text: str, value: float) -> None:
    component = reward(pattern(r"<a>\d</a>"), addition(), text)
    assert (component.name, component.value, component.outcome) == ("format", value, SCORE)


@pytest.mark.parametrize("hostile", ["(a|a)+b", "(?:a|aa)+b", "(x+x+)+y|(a|a?)+b"])
def test_a_match_without_an_end_is_stopped_soon_and_the_answer_is_invalid(hostile: str) -> None:
    started = time.monotonic()
    component = reward(pattern(hostile), addition(), "a" * 5_000)
    assert (component.value, component.outcome) == (0, INVALID)
    assert "took longer than 0.1 s" in component.detail
    assert time.monotonic() - started < 2


def test_quick_and_slow_matches_of_a_group_keep_their_order() -> None:
    components = scores(pattern("(a|a)+b|x"), addition(), *map(answer, ("x", "a" * 5_000, "y", "x")))
    assert [g.outcome for g in components] == [SCORE, INVALID, SCORE, SCORE]
    assert [g.value for g in components] == [1, 0, 0, 1]


def test_a_stopped_match_is_counted() -> None:
    async def play() -> Bench:
        bench = Bench([pattern("(a|a)+b|x")])
        await bench.scorer.score(addition(), [answer("x"), answer("a" * 5_000)])
        return bench

    assert asyncio.run(play()).sample("reward_overruns_total", reward="format") == 1


def test_a_text_too_long_to_match_is_an_invalid_answer() -> None:
    component = reward(pattern(".*"), addition(), "a" * 1_000_000)
    assert (component.value, component.outcome) == (0, INVALID)
    assert "1000000 characters; at most 65536" in component.detail


@pytest.mark.parametrize("bad", ["(", "[a", "(?P<n", "*a"])
def test_an_invalid_pattern_is_a_configuration_error_at_start(bad: str) -> None:
    with pytest.raises(ConfigError, match=r"rewards\.1: format: not a usable regular expression"):
        Bench([EXACT, pattern(bad)])


def test_a_reward_configured_twice_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"rewards\.1\.name: `exact_match` is configured twice"):
        Bench([EXACT, EXACT])


@pytest.mark.parametrize("config", [EXACT, COUNTDOWN, pattern(r"\S+")])
def test_a_completion_cut_off_by_length_is_scored_like_any_other(config: RewardSection) -> None:
    prompt, text = (countdown(), "3*8") if config is COUNTDOWN else (addition(), "46")
    assert reward(config, prompt, text, FinishReason.LENGTH) == reward(config, prompt, text)
    assert reward(config, prompt, text).value == 1


@pytest.mark.parametrize(
    ("config", "prompt", "reason"),
    [
        (EXACT, Prompt(prompt_id="p9", task="t", text="?", answer=" "), "prompt p9: no `answer`"),
        (COUNTDOWN, addition(), "field `numbers` needs 1 to 64 numbers"),
        (COUNTDOWN, countdown(numbers="3 x 1"), "field `numbers`: 'x' is not a whole number"),
        (COUNTDOWN, countdown(numbers="3 ٣"), r"field `numbers`: '\\u0663' is not a whole number"),
        (COUNTDOWN, countdown(numbers="1 " * 65), "needs 1 to 64 numbers"),
        (COUNTDOWN, countdown(answer=""), "no `answer`"),
        (COUNTDOWN, countdown(answer="3*8"), r"`answer`: '3\*8' is not a whole number"),
        (COUNTDOWN, countdown(answer="9" * 5000), "is not a whole number of at most 18 digits"),
    ],
)
def test_a_prompt_without_its_ground_truth_is_an_invalid_request(
    config: RewardSection, prompt: Prompt, reason: str
) -> None:
    with pytest.raises(UnusableGroundTruth, match=reason):
        reward(config, prompt, "46")


@given(st.text(max_size=100))
def test_any_answer_gets_a_verdict_from_every_reward(text: str) -> None:
    for config in (EXACT, COUNTDOWN, pattern(r"\d+")):
        assert reward(config, countdown(), text).outcome in (SCORE, INVALID)
