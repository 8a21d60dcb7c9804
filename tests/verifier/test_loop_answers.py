"""The event loop of the verifier stays responsive while hostile texts are scored."""

import asyncio
import time
from collections.abc import Sequence
from unicodedata import normalize

import pytest
from slipstream.config import VerifierConfig
from slipstream.config.rewards import CodeTestsConfig, ExactMatchConfig, NoRepeatConfig
from slipstream.config.rewards.base import RewardSection
from slipstream.records import Outcome, Prompt
from slipstream.records import Reward as Component
from slipstream.verifier.rewards.canonical import canonical, longest_equivalent
from verifier.scoring import Bench, answer

MARKS = "e" + "\u0316\u0301" * 32_000
FENCES = "~" * 65_000 + "`"
LONGEST_SECONDS = 0.5
TESTS = {"tests": '[{"input": "", "output": "42"}]'}
CONFIG = VerifierConfig(workers=1)


def scored(
    reward: RewardSection, texts: Sequence[str], *, truth: str = "caf\u00e9"
) -> tuple[list[Component], float]:
    """Score a group; return its components, and the longest time for which the event loop was blocked."""

    async def longest_silence() -> float:
        longest, before = 0.0, time.monotonic()
        try:
            while True:
                await asyncio.sleep(0.001)
                now = time.monotonic()
                longest, before = max(longest, now - before), now
        except asyncio.CancelledError:
            return max(longest, time.monotonic() - before)

    async def play() -> tuple[list[Component], float]:
        prompt = Prompt(prompt_id="p", task="t", answer=truth, text="?", fields=TESTS)
        async with Bench([reward], config=CONFIG) as bench:
            watch = asyncio.create_task(longest_silence())
            await asyncio.sleep(0)
            vectors = await bench.scorer.score(prompt, [answer(text) for text in texts])
            watch.cancel()
            return [vector[0] for vector in vectors], await watch

    return asyncio.run(play())


@pytest.mark.parametrize(
    "reward",
    [
        ExactMatchConfig(name="exact_match"),
        ExactMatchConfig(name="exact_match", ignore_case=True, ignore_spaces=True),
        NoRepeatConfig(name="no_repeat"),
        NoRepeatConfig(name="no_repeat", ignore_case=True),
    ],
)
def test_the_loop_is_responsive_while_many_combining_marks_are_scored(reward: RewardSection) -> None:
    scores, silence = scored(reward, [MARKS, MARKS + "x", "x" + MARKS])
    assert {score.outcome for score in scores} == {Outcome.SCORE}
    assert silence < LONGEST_SECONDS


def test_the_loop_is_responsive_while_a_ground_truth_of_combining_marks_is_compared() -> None:
    scores, silence = scored(ExactMatchConfig(name="exact_match"), [MARKS, MARKS[:-1]], truth=MARKS)
    assert [score.value for score in scores] == [1, 0]
    assert silence < LONGEST_SECONDS


def test_the_loop_is_responsive_while_a_long_fenced_block_is_parsed() -> None:
    (score,), silence = scored(CodeTestsConfig(name="code_tests"), [FENCES])
    assert score.outcome is Outcome.INVALID_ANSWER
    assert silence < LONGEST_SECONDS


def test_a_text_with_very_many_combining_marks_is_compared_without_normalization() -> None:
    assert canonical("e\u0301" * 5) == "\u00e9" * 5
    assert canonical("E\u0301", ignore_case=True) == "\u00e9"
    assert canonical(MARKS) == MARKS
    assert [
        score.value for score in scored(NoRepeatConfig(name="no_repeat"), [MARKS, MARKS, MARKS + "x"])[0]
    ] == [1, 0, 1]


def test_no_text_that_equals_the_ground_truth_is_too_long() -> None:
    """Letters with the longest decomposition and the longest case folding."""
    for letters in ("\u1f82", "\u0390", "\ufb2c", "\u1e9e", "\u01d5 \u1e14"):
        longest = normalize("NFD", letters)
        assert len(longest) <= longest_equivalent(canonical(letters))
        folding = ExactMatchConfig(name="exact_match", ignore_case=True, ignore_spaces=True)
        assert [score.value for score in scored(folding, [longest, letters], truth=letters)[0]] == [1, 1]


def test_an_answer_of_too_many_characters_is_invalid_and_the_others_are_compared() -> None:
    scores, silence = scored(NoRepeatConfig(name="no_repeat"), ["a" * 300_000, "b", "b", ""])
    assert [(score.value, score.outcome) for score in scores] == [
        (0, Outcome.INVALID_ANSWER),
        (1, Outcome.SCORE),
        (0, Outcome.SCORE),
        (0, Outcome.INVALID_ANSWER),
    ]
    assert silence < LONGEST_SECONDS
