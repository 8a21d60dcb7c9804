"""The block of an answer that is taken as its program."""

import json

import pytest
from slipstream.config.rewards import CodeTestsConfig
from slipstream.records import Outcome, Prompt
from slipstream.verifier.rewards.code_tests import last_block
from verifier.scoring import answer, scores

RIGHT = "def answer(): return 42"
WRONG = "def answer(): return 0"
TESTS = json.dumps([{"call": "answer", "args": [], "expected": 42}])
PROMPT = Prompt(prompt_id="p", task="t", answer="", text="?", fields={"tests": TESTS})


def block(code: str, fence: str = "```", language: str = "python", end: str = "\n") -> str:
    return end.join([fence + language, *code.split("\n"), fence.strip() if end == "\n" else fence])


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"{block(WRONG)}\n{block(RIGHT)}", RIGHT),
        (f"{block(RIGHT)}\n{block(WRONG)}", WRONG),
        (f"{block(RIGHT)}\n{block(WRONG, language='')}", RIGHT),
        (f"{block(RIGHT)}\n{block(WRONG, language='json')}", RIGHT),
        (f"{block(RIGHT)}\n```python\n{WRONG}", RIGHT),
        (block(RIGHT, language="Python3 main.py"), RIGHT),
        (block(RIGHT, fence="~~~"), RIGHT),
        (block(f"'''\n```\n'''\n{RIGHT}", fence="````"), f"'''\n```\n'''\n{RIGHT}"),
        (block(block(RIGHT), fence="````", language="markdown"), None),
        (block(block(RIGHT), language="markdown"), None),
        (block(f"~~~\n{RIGHT}"), f"~~~\n{RIGHT}"),
        (block("    def answer():\n        return 42", fence="    ```"), "def answer():\n    return 42"),
        (f"```python {RIGHT}```", None),
        (f"```python\n{RIGHT}", None),
        (f"`{block(RIGHT)}", None),
        (f"python\n{RIGHT}", None),
        (RIGHT, None),
        ("", None),
        ("`" * 100_000, None),
        ("```python\n" * 100_000, None),
        ("```\n" * 100_000, None),
    ],
)
def test_the_last_closed_block_of_python_is_the_program(text: str, code: str | None) -> None:
    assert last_block(text) == code


def test_lines_may_end_with_crlf() -> None:
    (reward,) = scores(CodeTestsConfig(name="code_tests"), PROMPT, answer(block(RIGHT, end="\r\n")))
    assert reward.value == 1


def test_an_answer_without_a_program_is_not_run() -> None:
    texts = [
        f"```python\n{RIGHT}\n{'#' * 1_000_000}\n```",
        "x" * 1_000_000,
        "\0",
        "```python\n\ud800\n```",
        "",
        " ",
    ]
    texts += [
        f"```python\n{RIGHT}\0\n```",
        f"\ufeff```python\n{RIGHT}\n```",
        "```python\n" + "(" * 60_000 + "\n```",
    ]
    for text, reward in zip(
        texts, scores(CodeTestsConfig(name="c"), PROMPT, *map(answer, texts)), strict=True
    ):
        assert reward.value == 0, text[:80]
        assert reward.outcome is not Outcome.ERROR, reward
