"""The games and tools of examples/: their rules, and the files of rows that their programs write."""

import json
from pathlib import Path
from typing import Any

import pytest
from actor.test_chat_tools import resources
from rollout.fakes import scenario, turn
from slipstream.actor.chat_tools import make_chat_tools
from slipstream.actor.environment import Environment, EpisodeBounds
from slipstream.actor.episode_run import Played, run_episode
from slipstream.config import load_config
from slipstream.config.environments import ChatToolsEnvironment
from slipstream.learner.policy.tiny import make_tokenizer
from slipstream.records import Prompt, Turn
from slipstream.tokens import Tokens

from examples import agent_program, agent_questions, calculator_tool, guess_number, wordle

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def tokens_of(example: str) -> Tokens:
    """Return the tokenizer of the example's tiny model."""
    tiny = load_config(EXAMPLES / f"{example}.yaml").model.tiny
    assert tiny is not None
    tokenizer = make_tokenizer(max_tokens=tiny.max_tokens, chat_template=tiny.chat_template)
    return Tokens(tokenizer, context_tokens=tiny.max_tokens, max_new_tokens=36)


async def play(environment: Environment, question: str, answer: str, *turns: str, tokens: Tokens) -> Played:
    """Return the episode in which the policy says these texts."""
    texts = list(turns)
    prompt = Prompt(prompt_id="1", task="t", answer=answer, text=question)

    async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        ids = tokens.encode_text(texts.pop(0))
        assert len(ids) <= max_tokens
        return turn(ids, (0, len(ids)))

    return await run_episode(
        environment,
        prompt,
        tokens.encode(prompt),
        sample=sample,
        tokens=tokens,
        bounds=EpisodeBounds(max_tokens=160),
    )


def rewards(played: Played) -> dict[str, float]:
    return {reward.name: round(reward.value, 3) for reward in played.completion.rewards}


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLES / name).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("guess", "answer"),
    [
        ("tun", "+++"),
        ("ten", "+-+"),
        ("but", "-+?"),
        ("tag", "+--"),
        ("big", "---"),
        ("rat", "!!!"),
        ("tu", "!!!"),
        ("", "!!!"),
    ],
)
def test_each_letter_of_a_word_gets_its_mark(guess: str, answer: str) -> None:
    assert wordle.marks(guess, "tun") == answer


@pytest.mark.parametrize(
    ("guess", "seen", "letters"),
    [
        ("tun", {}, 0),
        ("rat", {}, 3),  # not on the list
        ("tun", {"tan": "+-+"}, 0),
        ("tan", {"tan": "+-+"}, 1),
        ("bat", {"tan": "+-+"}, 3),
        ("but", {"tug": "?+-"}, 0),
        ("tun", {"tug": "?+-"}, 1),
        ("pat", {"tan": "---"}, 2),
        ("pat", {"tan": "---", "pen": "-+-"}, 3),
        ("tun", {"xyz": "!!!"}, 0),
    ],
)
def test_the_marks_of_earlier_guesses_exclude_letters(guess: str, seen: dict[str, str], letters: int) -> None:
    assert wordle.contradictions(guess, seen) == letters


def test_a_word_that_fits_the_marks_is_contradicted_by_none_of_them() -> None:
    for secret in wordle.WORDS:
        seen = {guess: wordle.marks(guess, secret) for guess in ("tun", "beg", "pit")}
        for word in wordle.fitting(tuple(seen), secret):
            assert wordle.contradictions(word, seen) == 0


def test_no_word_of_the_list_has_a_letter_twice() -> None:
    assert len(set(wordle.WORDS)) == len(wordle.WORDS) == 28
    assert {len(set(word)) for word in wordle.WORDS} == {wordle.LETTERS}


@scenario
async def test_a_game_of_words_ends_with_the_word_or_the_last_guess() -> None:
    tokens = tokens_of("wordle")
    solved = await play(wordle.Wordle(), "game:", "tun", "tan", "tun", tokens=tokens)
    assert solved.completion.text == "tan+-+tun+++"
    assert solved.completion.mask == (1, 1, 1, 0, 0, 0) * 2
    assert rewards(solved) == {"solved": 1.0, "turns": 2.0, "contradictions": 0.0}
    lost = await play(wordle.Wordle(), "game:", "tun", *["big"] * 5, "tan", tokens=tokens)
    assert rewards(lost) == {"solved": 0.0, "turns": 6.0, "contradictions": 12.0}
    by_turn = [reward.steps for reward in lost.completion.rewards if reward.name == "contradictions"]
    assert [[step.value for step in steps] for steps in by_turn] == [[0.0, 3.0, 3.0, 3.0, 3.0, 0.0]]


@pytest.mark.parametrize(("guess", "answer"), [("3", ">"), ("5", "="), ("9", "<"), ("x", "?"), ("", "?")])
def test_a_guess_of_a_digit_gets_a_hint(guess: str, answer: str) -> None:
    assert guess_number.hint(guess, 5) == answer


@scenario
async def test_a_game_of_digits_ends_with_the_number_or_the_last_guess() -> None:
    tokens = tokens_of("guess_number")
    solved = await play(guess_number.GuessNumber(), "game:", "7", "4", "8", "7", tokens=tokens)
    assert solved.completion.text == "4>8<7="
    assert rewards(solved) == {"solved": 1.0, "turns": 3.0}
    lost = await play(guess_number.GuessNumber(most_guesses=2), "game:", "7", "1", "2", tokens=tokens)
    assert rewards(lost) == {"solved": 0.0, "turns": 2.0}


@scenario
async def test_the_demonstrations_of_calls_are_conversations_as_the_environment_holds_them() -> None:
    tokens, section = tokens_of("calculator_tool"), load_config(EXAMPLES / "calculator_tool.yaml").data
    assert isinstance(section.environment, ChatToolsEnvironment)
    environment = make_chat_tools(section.environment, tokens, resources())
    seen = set()
    for row in rows("calculator_demonstrations.jsonl")[:100]:
        question = row["prompt"].removeprefix(calculator_tool.HEADER).removesuffix(";")
        first, *later = row["demonstration"].split(calculator_tool.END)
        turns = [f"{first}<eos>", *(f"{text.partition(';')[2]}<eos>" for text in later)]
        played = await play(environment, question, row["answer"], *turns, tokens=tokens)
        (segment,) = [each for each in played.completion.segments if each.token_ids]
        assert tokens.decode_with_special(segment.prompt_token_ids or ()) == row["prompt"]
        assert tokens.decode_with_special(segment.token_ids) == row["demonstration"] + "<eos>"
        seen.add((len(turns), rewards(played)["failed_tool_calls"], played.completion.text == row["answer"]))
    assert seen == {(1, 0.0, False), (2, 0.0, False), (2, 0.0, True), (2, 1.0, False)}


def test_no_question_of_the_calculator_is_demonstrated() -> None:
    demonstrated = {row["prompt"] for row in rows("calculator_demonstrations.jsonl")}
    for row in rows("calculator_tool.jsonl"):
        assert f"{calculator_tool.HEADER}{row['prompt']};" not in demonstrated
        a, b = map(int, row["prompt"].rstrip("=").split("*"))
        assert row["answer"] == str(calculator_tool.multiply(a, b))


def test_the_demonstrations_of_the_agent_are_what_it_leaves_with_and_without_its_calculator() -> None:
    asking = [row for row in rows("agent_program.jsonl") if row["demonstration"].startswith("?")]
    assert 1100 < len(asking) < 1300
    for row in asking:
        result, _, answer = row["demonstration"][1:].partition(":")
        assert result == str(agent_program.calculator(row["prompt"])) == row["answer"]
        assert answer.isdecimal()


@pytest.mark.parametrize(
    ("program", "name"),
    [(guess_number, "guess_number"), (wordle, "wordle"), (agent_questions, "agent_program")],
)
def test_the_rows_of_an_example_are_those_that_its_program_prints(
    program: Any, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program.main()
    assert capsys.readouterr().out == (EXAMPLES / f"{name}.jsonl").read_text(encoding="utf-8")


def test_the_files_of_the_calculator_are_those_that_its_program_writes(tmp_path: Path) -> None:
    calculator_tool.main(tmp_path)
    for name in ("calculator_tool.jsonl", "calculator_demonstrations.jsonl"):
        assert (tmp_path / name).read_text() == (EXAMPLES / name).read_text(encoding="utf-8")
