"""`slipstream score`: the scores of a user's file, the summary, and the errors by line."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from slipstream.config.data import FileData
from slipstream.records import Outcome, Reward
from slipstream.verifier.score.__main__ import main, scoring_config
from slipstream.verifier.score.rows import BadRow, Row, column_names, read_rows
from slipstream.verifier.score.summary import Summary, histogram

USUAL = {"rewards": ["exact_match"], "config": None, "set": [], "columns": [], "output": None}


def score(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slipstream.cli", "score", str(file), *options]
    return subprocess.run(command, env={"PYTHONPATH": "services"}, capture_output=True, text=True)


def a_file(folder: Path, *rows: Any) -> Path:
    file = folder / "rows.jsonl"
    file.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return file


def rows_of(folder: Path, *rows: Any, columns: tuple[str, ...] = ()) -> list[Row | BadRow]:
    return list(read_rows(a_file(folder, *rows), column_names(list(columns))))


def test_a_reward_with_a_condition_scores_the_rows_of_its_source(tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text(
        "data: {kind: mixture, of: [{kind: addition, name: sums}, {kind: sort_digits, name: sorting}]}\n"
        "rewards:\n"
        "  - {name: exact_match, when: {source: [sums]}}\n"
        "  - {name: digits, kind: format, pattern: '[0-9]+'}\n"
    )
    row = {"prompt": "1+1=", "answer": "2", "completion": "2"}
    file = a_file(tmp_path, {**row, "source": "sums"}, {**row, "source": "sorting"}, row)
    done = score(file, "--config", str(run))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["scores"] for line in lines] == [{"exact_match": 1.0, "digits": 1.0}, {"digits": 1.0}]
    assert "exact_match: mean 1.0000 of 1" in done.stderr
    assert "rows.jsonl:3: Score: the prompt is of the source ''" in done.stderr
    assert done.returncode == 1


def test_scores_go_to_standard_output_and_the_summary_to_standard_error(tmp_path: Path) -> None:
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
    assert done.stderr.count("no `answer`; the ground truth is needed") == 1
    assert "rows.jsonl:3: no `answer`; the ground truth is needed (reward `exact_match`)" in done.stderr
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
    assert "total: mean 2.0000 of 1 (1 exact_match, 1 words)" in done.stdout
    done = score(file, "--config", str(run), "--reward", "words", *columns)
    assert json.loads(done.stdout)["scores"] == {"words": 1.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rewards": []}, "which reward? --reward NAME"),
        ({"rewards": ["exactmatch"]}, "rewards.0.name: is 'exactmatch', which is no kind"),
        ({"rewards": ["judge"]}, "rewards.0.url: is required, and missing"),
        ({"rewards": ["judge"]}, "--set rewards.0.KEY=VALUE gives the first its arguments"),
        ({"set": ["rewards.1.ignore_case=true"]}, "1 is no place in a list of 1"),
        ({"rewards": ["math", "math"]}, "`math` is configured twice"),
        ({"rewards": ["self_judge"]}, "the policy gives this reward, in a rollout"),
        ({"columns": ["question=q"]}, "USE one of prompt, answer"),
        (
            {"rewards": ["custom"], "set": ["rewards.0.function=none:such"]},
            f"none:such: No module named 'none' (in {Path.cwd()} or what is installed); is it on",
        ),
        ({"output": "."}, "--output: . is a folder"),
    ],
)
def test_wrong_usage_is_exit_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], message: str
) -> None:
    file = a_file(tmp_path, {"prompt": "?", "answer": "a", "completion": "a"})
    assert main({**USUAL, "file": str(file), **options}) == 2
    assert message in capsys.readouterr().err


def test_the_columns_of_a_run_are_the_default_and_an_option_overrides_them() -> None:
    data = FileData(kind="file", path=Path("train.jsonl"), prompt_column="question", answer_column="truth")
    names = column_names(["answer=solution"], data)
    assert (names["prompt"], names["answer"], names["completion"]) == ("question", "solution", "completion")


def test_a_reward_by_the_policy_is_left_out_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run.yaml"
    run.write_text("rewards: [{name: exact_match}, {name: self_judge, weight: 0.1}]")
    options = {"rewards": [], "config": str(run), "set": []}
    assert [reward.name for reward in scoring_config(options).rewards] == ["exact_match"]
    assert capsys.readouterr().err == "self_judge is left out: the policy gives it, in a rollout\n"


def test_wrong_usage_of_the_command_is_exit_status_2(tmp_path: Path) -> None:
    assert score(a_file(tmp_path)).returncode == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([], "needs an object, got a list"),
        ({"completion": "a"}, "has no `prompt`"),
        ({"question": "?", "completion": "a"}, "has no `prompt` or `messages`, but `question`, `completion`"),
        ({"prompt": 7, "completion": "a"}, "`prompt` must be a text or a list of messages, got a int"),
        ({"prompt": [{"role": "user"}], "completion": "a"}, "every message needs the texts"),
        ({"prompt": "?"}, "has no `completion` or `completions`, but `prompt`"),
        ({"prompt": "?", "completion": [{"role": "assistant", "content": "a"}] * 2}, "a text or one message"),
        ({"messages": [{"role": "user", "content": "?"}]}, "has no `completion`"),
        ({"prompt": "?", "completions": []}, "a list of at least one, got []"),
        ({"prompt": "?", "completion": None}, "has no `completion` or `completions`, but `prompt`"),
        ({"prompt": "?", "completion": 7}, "must be a text or one message"),
        ({"prompt": "", "completion": "a"}, "the prompt is empty; a text is needed"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "the prompt is empty"),
        ({"prompt": "?", "completion": "a", "answer": ["a"]}, "`answer` must be a text or a number"),
        ('{"prompt": "?", "completion": "a", "answer": NaN}', "`answer` must be a text or a number, got nan"),
        ({"prompt": "?", "completions": ["a", "b"], "tokens": [1]}, "one for each of 2 completions"),
    ],
)
def test_the_error_of_a_bad_row_has_its_line(tmp_path: Path, row: Any, message: str) -> None:
    _, bad = rows_of(tmp_path, {"prompt": "?", "completion": "a"}, row)
    assert isinstance(bad, BadRow)
    assert f"{tmp_path / 'rows.jsonl'}:2: " in str(bad)
    assert message in str(bad)


def test_a_null_field_counts_as_missing(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "?"}]
    row = {"prompt": None, "messages": messages, "completion": None, "completions": ["a", "b"]}
    nulls = dict.fromkeys(["answer", "id", "tokens", "setup"])
    (row_read,) = rows_of(tmp_path, {**row, **nulls, "tests": ["assert f()"]})
    assert isinstance(row_read, Row)
    assert (row_read.prompt.messages[0].content, [answer.text for answer in row_read.answers]) == (
        "?",
        ["a", "b"],
    )
    assert (row_read.prompt.prompt_id, row_read.prompt.answer) == ("line 1", "")
    assert row_read.prompt.fields == {"tests": '["assert f()"]'}


def test_conversations_lengths_and_further_columns_are_read(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "?"}]
    row = {"prompt": turns, "answer": 1.5, "completions": ["a", "b"], "tokens": [3, 4], "numbers": [1, 2]}
    (read,) = rows_of(tmp_path, row)
    assert isinstance(read, Row)
    assert read.prompt.messages[0].content == "?"
    assert read.prompt.answer == "1.5"
    assert read.prompt.fields == {"numbers": "[1, 2]"}
    assert [(answer.text, answer.tokens) for answer in read.answers] == [("a", 3), ("b", 4)]


USER, REPLY = {"role": "user", "content": "?"}, {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("row", "texts"),
    [
        ({"messages": [USER, REPLY]}, ["a"]),
        ({"messages": [USER], "completion": "b"}, ["b"]),
        ({"prompt": [USER], "completion": [REPLY]}, ["a"]),
        ({"prompt": [USER], "completion": REPLY}, ["a"]),
        ({"prompt": [USER], "completions": [[REPLY], REPLY, "c"]}, ["a", "a", "c"]),
        ({"messages": [USER], "completion": ["a", "b"]}, ["a", "b"]),
    ],
)
def test_conversations_are_read_in_every_usual_form(tmp_path: Path, row: Any, texts: list[str]) -> None:
    (read,) = rows_of(tmp_path, row)
    assert isinstance(read, Row), read
    assert [answer.text for answer in read.answers] == texts
    assert [(turn.role, turn.content) for turn in read.prompt.messages] == [("user", "?")]
    assert read.prompt.fields == {}


GOOD = b'{"prompt": "?", "completion": "a"}'


@pytest.mark.parametrize(
    ("content", "bad"),
    [
        (b"\xef\xbb\xbf" + GOOD + b"\r\n\r\n" + GOOD, []),
        (GOOD + b"\n" + b'{"prompt": "\xff"}', ["rows.jsonl:2: is not UTF-8"]),
        (b"[\n" + GOOD + b"\n" + GOOD, ["rows.jsonl:1: is not JSON"]),
        (GOOD + b"\n" + b"[" * 100_000 + b"\n" + GOOD, ["rows.jsonl:2: is not JSON"]),
        (b"\n".join([GOOD, b"x" * (64 * 1024 * 1024 + 9), GOOD]), ["rows.jsonl:2: more than 67108864"]),
    ],
    ids=["mark of byte order, carriage returns, empty lines", "no UTF-8", "an array", "deep", "a long line"],
)
def test_a_file_is_read_in_its_encoding_and_its_bad_rows_are_reported(
    tmp_path: Path, content: bytes, bad: list[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(content)
    rows = list(read_rows(file, column_names([])))
    errors = [str(row) for row in rows if isinstance(row, BadRow)]
    assert len(errors) == len(bad)
    assert all(reason in message for message, reason in zip(errors, bad, strict=True))
    assert sum(isinstance(row, Row) for row in rows) == 2 - (content.count(b"\xff"))


def test_compressed_files_and_parquet_are_read(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(GOOD + b"\n" + GOOD))
    rows = [{"prompt": [USER], "completions": ["a", "b"], "answer": 7}] * 2
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    for name, texts in (("rows.jsonl.gz", ["a"]), ("rows.parquet", ["a", "b"])):
        read = list(read_rows(tmp_path / name, column_names([])))
        assert [[answer.text for answer in row.answers] for row in read if isinstance(row, Row)] == [
            texts
        ] * 2


@pytest.mark.parametrize(
    "content",
    [gzip.compress(GOOD)[:-9], b"{}", gzip.compress(b"")[:10] + b"\xff" * 9],
    ids=["cut off", "not compressed", "no stream"],
)
def test_an_invalid_or_incomplete_gzip_file_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    file = tmp_path / "rows.jsonl.gz"
    file.write_bytes(content)
    assert main({**USUAL, "file": str(file)}) == 2
    assert f"slipstream score: {file}: not a readable gzip file: " in capsys.readouterr().err


def test_a_reward_of_lengths_needs_the_column_of_lengths(tmp_path: Path) -> None:
    file = a_file(
        tmp_path, {"prompt": "?", "completion": "a"}, {"prompt": "?", "completion": "a", "tokens": 9}
    )
    bad, good = read_rows(file, column_names([]), lengths=True)
    assert "has no `tokens`, which a reward reads" in str(bad)
    assert isinstance(good, Row)
    done = score(file, "--reward", "length", "--set", "rewards.0.safe_tokens=4", "rewards.0.max_tokens=14")
    assert json.loads(done.stdout)["scores"] == {"length": -0.5}


def test_standard_input_is_scored_and_the_first_of_many_bad_rows_are_named() -> None:
    command = [sys.executable, "-m", "slipstream.cli", "score", "-", "--reward", "exact_match"]
    rows = "\n".join(["nonsense"] * 30 + ['{"prompt": "?", "answer": "a", "completion": "a"}'])
    done = subprocess.run(command, env={"PYTHONPATH": "services"}, input=rows, capture_output=True, text=True)
    assert json.loads(done.stdout)["total"] == 1
    assert done.stderr.count("is not JSON") == 20
    assert "30 bad rows were left out" in done.stderr
    assert done.returncode == 1


def test_a_file_without_rows_is_an_error(tmp_path: Path) -> None:
    done = score(a_file(tmp_path), "--reward", "exact_match")
    assert "no rows: nothing was scored" in done.stderr
    assert done.returncode == 1
    done = score(tmp_path / "none.jsonl", "--reward", "exact_match")
    assert done.stderr == f"slipstream score: {tmp_path / 'none.jsonl'}: No such file or directory\n"


def scoring(file: Path, *options: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "slipstream.cli",
        "score",
        str(file),
        "--reward",
        "exact_match",
        *options,
    ]
    return subprocess.Popen(
        command,
        env={"PYTHONPATH": "services"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )


def heed_interrupts() -> None:
    """Handle SIGINT: a shell ignores it in background jobs, and child processes would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_closed_output_pipe_ends_the_command_without_a_message(tmp_path: Path) -> None:
    file = a_file(tmp_path, *[{"prompt": "?", "answer": "a", "completion": "a"}] * 5000)
    process = scoring(file)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_keeps_the_finished_scores_and_says_so(tmp_path: Path, number: int) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "scores.jsonl"
    os.mkfifo(rows)
    process = scoring(rows, "--output", str(output))
    with rows.open("w") as pipe:
        row = json.dumps({"prompt": "?", "answer": "a", "completion": "a" * 1000})
        for _ in range(100):
            print(row, file=pipe)
        pipe.flush()
        deadline = time.monotonic() + 30
        partial = tmp_path / "scores.jsonl.partial"
        while not (partial.exists() and partial.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        stdout, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted; what was scored until then" in errors
    assert "exact_match: mean 0.0000 of" in stdout
    assert partial.stat().st_size
    assert not output.exists()


def test_an_output_file_that_is_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    file, pipe = a_file(tmp_path, {"prompt": "?", "answer": "a", "completion": "a"}), tmp_path / "pipe"
    os.mkfifo(pipe)
    process = scoring(file, "--output", str(pipe))
    descriptor = os.open(pipe, os.O_RDWR)
    process.communicate(timeout=30)
    assert pipe.is_fifo()
    assert json.loads(os.read(descriptor, 65536))["total"] == 1
    os.close(descriptor)


def test_an_output_file_that_is_a_link_is_followed(tmp_path: Path) -> None:
    file, link = a_file(tmp_path, {"prompt": "?", "answer": "a", "completion": "a"}), tmp_path / "link"
    link.symlink_to(tmp_path / "scores.jsonl")
    assert main({**USUAL, "file": str(file), "output": str(link)}) == 0
    assert link.is_symlink()
    assert json.loads((tmp_path / "scores.jsonl").read_text())["total"] == 1


def test_an_error_does_not_count_as_zero_in_the_mean() -> None:
    summary = Summary("r")
    for value, outcome in ((1.0, Outcome.SCORE), (0.0, Outcome.INVALID_ANSWER), (0.0, Outcome.ERROR)):
        summary.add(Reward(name="r", value=value, outcome=outcome))
    assert next(summary.lines()) == "r: mean 0.5000 of 2 (score 1, invalid_answer 1, error 1)"


def test_an_unreachable_judge_is_an_error_and_no_score(tmp_path: Path) -> None:
    file = a_file(tmp_path, {"prompt": "?", "completion": "a"})
    arguments = ("rewards.0.url=http://127.0.0.1:9/v1", "rewards.0.model=m", "rewards.0.retries=0")
    done = score(file, "--reward", "judge", "--set", *arguments)
    line = json.loads(done.stdout)
    assert (line["total"], line["scores"], line["outcomes"]) == (None, {"judge": None}, {"judge": "error"})
    assert "judge: no scores (score 0, invalid_answer 0, error 1)" in done.stderr
    assert "the first error: http://127.0.0.1:9/v1: ConnectError" in done.stderr
    assert done.returncode == 1


def test_many_values_are_counted_in_ten_equal_intervals() -> None:
    counted = histogram([float(i) for i in range(101)])
    assert [count for _, count in counted] == [10, 10, 10, 10, 10, 10, 10, 10, 10, 11]
    assert counted[0][0] == "0 to 10"
    assert histogram([1.0, 0.5, 1.0]) == [("0.5", 1), ("1", 2)]


def test_the_score_of_a_failed_program_has_the_reason(tmp_path: Path) -> None:
    tests = [{"input": "2\n", "output": "4\n"}]
    programs = ["print(2 * int(input()))", "print(int(input()))", "1 / 0"]
    completions = [f"```python\n{program}\n```" for program in programs]
    done = score(
        a_file(tmp_path, {"prompt": "?", "tests": tests, "completions": completions}),
        "--reward",
        "code_tests",
    )
    assert [json.loads(line)["details"] for line in done.stdout.splitlines()] == [
        {},
        {"code_tests": "test 1 of 1: wrong: another output"},
        {"code_tests": "test 1 of 1: crashed: ZeroDivisionError"},
    ]
