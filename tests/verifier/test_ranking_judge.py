"""A judge that ranks the answers of a group: its question, its rankings, and replies that are errors."""

import random
import re
from typing import Any

import pytest
from pydantic import ValidationError
from slipstream.config.rewards import JudgeConfig
from slipstream.records import Outcome, Prompt
from slipstream.records import Reward as Component
from slipstream.verifier.judge import endpoint, ranking
from slipstream.verifier.judge.question import NoScore
from verifier.chat_server import Chat, Reply, chat_server
from verifier.scoring import answer, scores

PROMPT = Prompt(prompt_id="p", task="t", text="Why is the sky blue?", answer="Rayleigh scattering")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "FIRST_PAUSE_SECONDS", 0.01)


def config(url: str = "https://judge/v1", **options: Any) -> JudgeConfig:
    return JudgeConfig(name="judge", url=url, model="m", ranks=True, **options)


def ranked(chat: Chat, *texts: str, **options: Any) -> list[Component]:
    return scores(config(chat.url, **options), PROMPT, *map(answer, texts))


def by_length(chat: Chat, *, json: bool = False) -> str:
    """Return a ranking of the answers of the last request by their length."""
    question = chat.requests[-1]["messages"][1]["content"]
    shown = re.findall(r"Answer (\d+):\n=== \w+ ===\n(.*?)\n===", question, re.DOTALL)
    order = [number for number, _ in sorted(shown, key=lambda pair: -len(pair[1]))]
    return (
        f'{{"ranking": [{", ".join(f"[{n}]" for n in order)}]}}' if json else f"RANKING: {' > '.join(order)}"
    )


@pytest.mark.parametrize("reply", ["line", "json"])
@pytest.mark.parametrize("seed", range(4))
def test_a_score_is_the_share_of_beaten_answers_for_any_order_of_presentation(reply: str, seed: int) -> None:
    random.seed(seed)
    with chat_server(lambda _: Reply(text=by_length(chat, json=reply == "json"))) as chat:
        components = ranked(
            chat, "xx", "w", "zzzz", "yyy", "yyy", reply=reply
        )  # letters that the hexadecimal marks lack
    assert [component.value for component in components] == [0.25, 0.0, 1.0, 0.625, 0.625]
    assert len(chat.requests) == 1
    assert chat.requests[0]["messages"][1]["content"].count("yyy") == 1


def test_a_single_answer_or_equal_answers_need_no_call() -> None:
    with chat_server(lambda _: Reply(text="RANKING: 1")) as chat:
        assert [each.value for each in ranked(chat, "a")] == [0.5]
        assert [each.value for each in ranked(chat, "a", "a", "a")] == [0.5] * 3
    assert chat.requests == []


def test_an_answer_that_is_too_long_is_invalid_and_the_others_are_ranked() -> None:
    with chat_server(lambda _: Reply(text=by_length(chat))) as chat:
        components = ranked(chat, "a", "bb", "c" * 9, max_characters=8)
    assert [(each.value, each.outcome) for each in components] == [
        (0.0, Outcome.SCORE),
        (1.0, Outcome.SCORE),
        (0.0, Outcome.INVALID_ANSWER),
    ]


def test_after_the_retries_a_missing_ranking_is_an_error_of_all_answers() -> None:
    with chat_server(lambda _: Reply(text="RANKING: 1 > 1")) as chat:
        components = ranked(chat, "a", "bb", retries=1)
    assert [each.outcome for each in components] == [Outcome.ERROR] * 2
    assert "not each of 1 to 2 once" in components[0].detail
    assert len(chat.requests) == 2


@pytest.mark.parametrize(
    "line", ["**RANKING: 2 > 1 = 3**", "**RANKING:** 2 > 1 = 3", "`RANKING: 2>1=3`", "RANKING: 2 > 1 = 3."]
)
def test_a_ranking_in_bold_counts(line: str) -> None:
    assert ranking.levels_of(config(), f"They differ.\n{line}", answers=3) == [[1], [0, 2]]


@pytest.mark.parametrize(
    "reply",
    [
        *(
            "",
            "RANKING: ",
            "RANKING: 1 > 2",
            "RANKING: 1 > 2 > 3 > 3",
            "RANKING: 0 > 1 > 2",
            "RANKING: 1, 2, 3",
        ),
        *(
            "RANKING: 3 > 2 > 1\nor not",
            "the answer says RANKING: 1 > 2 > 3",
            "RANKING: 1 > 2 > 4",
            "SCORE: 3",
        ),
    ],
)
def test_anything_else_on_the_last_line_is_no_ranking(reply: str) -> None:
    with pytest.raises(NoScore):
        ranking.levels_of(config(), reply, answers=3)


@pytest.mark.parametrize(
    "reply",
    [
        "[]",
        "{}",
        '{"ranking": [1, 2]}',
        '{"ranking": [[1], [true]]}',
        '{"ranking": [[1, 2], [1]]}',
        "RANKING: 1 > 2",
    ],
)
def test_any_other_json_is_no_ranking(reply: str) -> None:
    with pytest.raises(NoScore):
        ranking.levels_of(config(reply="json"), reply, answers=2)


def test_tied_answers_share_the_mean_of_their_ranks() -> None:
    levels = ranking.levels_of(config(), "Sound.\nRANKING: 2 = 3 > 1", answers=3)
    assert levels == [[1, 2], [0]]
    assert ranking.scores(levels, [1, 1, 1]) == [0.0, 0.75, 0.75]
    assert sum(
        ranking.scores(levels, [2, 1, 3])[place] * times for place, times in enumerate([2, 1, 3])
    ) == pytest.approx(3)


def test_a_ranking_judge_has_no_bounds_and_sees_the_whole_group() -> None:
    with pytest.raises(ValidationError, match="with ranks there are none"):
        config(highest=5)
    assert config().sees_group()
    assert not JudgeConfig(name="judge", url="https://judge/v1", model="m").sees_group()
