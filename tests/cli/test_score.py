"""`slipstream score`: scores of a user's file, its summary, and what is wrong with it by line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from slipstream.types import Outcome, Reward
from slipstream.verifier.score.rows import BadRow, Row, column_names, read_rows
from slipstream.verifier.score.summary import Summary, histogram


def score(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slipstream.cli", "score", str(file), *options]
    return subprocess.run(command, env={"PYTHONPATH": "services"}, capture_output=True, text=True)


def a_file(folder: Path, *rows: Any) -> Path:
    file = folder / "rows.jsonl"
    file.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return file


def rows_of(folder: Path, *rows: Any, columns: tuple[str, ...] = ()) -> list[Row | BadRow]:
    return list(read_rows(a_file(folder, *rows), column_names(list(columns))))


def test_scores_go_to_standard_output_and_the_summary_beside_them(tmp_path: Path) -> None:
    file = a_file(
        tmp_path,
        {"prompt": "1+1=", "answer": 2, "completions": ["2", "3"], "id": "first"},
        "nonsense",
        {"prompt": "1+1=", "completion": "2"},
    )
    done = score(file, "--reward", "exact_match", "--set", "rewards.0.weight=3")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["id"], line["line"], line["completion"], line["total"]) for line in lines] == [
        ("first", 1, 0, 3.0),
        ("first", 1, 1, 0.0),
    ]
    assert lines[0]["scores"] == {"exact_match": 1.0}
    assert "exact_match: mean 0.5000 of 2 (score 2, invalid_answer 0, error 0)" in done.stderr
    assert "rows.jsonl:2: is not JSON" in done.stderr
    assert "line 3: prompt line 3: no `answer`" in done.stderr
    assert "2 bad rows were left out" in done.stderr
    assert done.returncode == 1


def test_a_run_and_an_output_may_be_named(tmp_path: Path) -> None:
    file = a_file(tmp_path, {"q": "?", "truth": "a", "reply": "a"})
    run = tmp_path / "run.yaml"
    run.write_text("rewards: [{name: exact_match}, {name: words, kind: format, pattern: '[a-z]+'}]")
    output = tmp_path / "scores.jsonl"
    columns = ("--column", "prompt=q", "answer=truth", "completion=reply")
    done = score(file, "--config", str(run), "--output", str(output), *columns)
    assert done.returncode == 0, done.stderr
    assert json.loads(output.read_text())["scores"] == {"exact_match": 1.0, "words": 1.0}
    assert "words: mean 1.0000 of 1" in done.stdout
    done = score(file, "--config", str(run), "--reward", "words", *columns)
    assert json.loads(done.stdout)["scores"] == {"words": 1.0}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "which reward? --reward NAME"),
        (("--reward", "exactmatch"), "got the kind 'exactmatch'"),
        (("--reward", "exact_match", "--column", "question=q"), "USE one of prompt, answer"),
    ],
)
def test_wrong_usage_ends_with_two(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    done = score(a_file(tmp_path, {"prompt": "?", "answer": "a", "completion": "a"}), *options)
    assert said in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([], "needs an object, got list"),
        ({"completion": "a"}, "has no `prompt`"),
        ({"prompt": 7, "completion": "a"}, "`prompt` must be a text or a list of messages, got int"),
        ({"prompt": [{"role": "user"}], "completion": "a"}, "every message needs the texts"),
        ({"prompt": "?"}, "has neither `completion` nor `completions`"),
        ({"prompt": "?", "completions": []}, "a list of at least one, got []"),
        ({"prompt": "?", "completion": None}, "must be a text, or a list"),
        ({"prompt": "?", "completion": "a", "answer": ["a"]}, "`answer` must be a text or a number"),
        ({"prompt": "?", "completions": ["a", "b"], "tokens": [1]}, "one for each of 2 completions"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, row: Any, said: str) -> None:
    _, bad = rows_of(tmp_path, {"prompt": "?", "completion": "a"}, row)
    assert isinstance(bad, BadRow)
    assert f"{tmp_path / 'rows.jsonl'}:2: " in str(bad)
    assert said in str(bad)


def test_conversations_lengths_and_further_columns_arrive(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "?"}]
    row = {"prompt": turns, "answer": 1.5, "completions": ["a", "b"], "tokens": [3, 4], "numbers": [1, 2]}
    (read,) = rows_of(tmp_path, row)
    assert isinstance(read, Row)
    assert read.prompt.messages[0].content == "?"
    assert read.prompt.answer == "1.5"
    assert read.prompt.fields == {"numbers": "[1, 2]"}
    assert [(answer.text, answer.tokens) for answer in read.answers] == [("a", 3), ("b", 4)]


def test_an_error_is_no_zero_in_the_mean() -> None:
    summary = Summary("r")
    for value, outcome in ((1.0, Outcome.SCORE), (0.0, Outcome.INVALID_ANSWER), (0.0, Outcome.ERROR)):
        summary.add(Reward(name="r", value=value, outcome=outcome))
    assert next(summary.lines()) == "r: mean 0.5000 of 2 (score 1, invalid_answer 1, error 1)"


def test_many_values_are_counted_in_ten_equal_parts() -> None:
    counted = histogram([float(i) for i in range(101)])
    assert [count for _, count in counted] == [10, 10, 10, 10, 10, 10, 10, 10, 10, 11]
    assert counted[0][0] == "0 to 10"
    assert histogram([1.0, 0.5, 1.0]) == [("0.5", 1), ("1", 2)]
