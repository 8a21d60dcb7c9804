"""Data files: rows become prompts, a malformed row is an error with its line, and the split is stable."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from slipstream.config.data import FileData
from slipstream.prompts import PromptSource, make_source
from slipstream.prompts.file import load_file
from slipstream.records import ChatMessage

GOOD = b'{"prompt": "q", "answer": "a"}'


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def questions(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"question {i}", "answer": f"answer {i}"} for i in range(count)]


def source(path: Path, *, seed: int = 0, **options: Any) -> PromptSource:
    return make_source(FileData(path=path, **options), seed=seed)


def held_out_texts(prompts: PromptSource) -> set[str]:
    assert prompts.held_out_size is not None
    return {prompts.held_out(i).text for i in range(prompts.held_out_size)}


def test_a_row_becomes_a_prompt_with_its_other_columns_as_fields(tmp_path: Path) -> None:
    row = {"prompt": "2+2?", "answer": 4, "level": "easy", "numbers": [3, 8], "none": None}
    path = write(tmp_path / "math.jsonl", [row])
    held_out = write(tmp_path / "other.jsonl", questions(1))
    prompt = source(path, held_out_path=held_out).training(0)
    assert (prompt.prompt_id, prompt.task) == ("math.jsonl:1", "math")
    assert (prompt.text, prompt.answer) == ("2+2?", "4")
    assert prompt.fields == {"level": "easy", "numbers": "[3, 8]"}


def test_messages_become_turns(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    path = write(tmp_path / "chat.jsonl", [{"messages": turns, "answer": "4"}])
    prompt = source(path, held_out_path=write(tmp_path / "h.jsonl", questions(1))).training(0)
    assert prompt.messages == (
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="2+2?"),
    )
    assert prompt.text == ""


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", [{"question": f"q{i}", "solution": "s"} for i in range(100)])
    prompt = source(path, prompt_column="question", answer_column="solution").training(0)
    assert prompt.text.startswith("q")
    assert prompt.answer == "s"


def test_byte_order_mark_blank_lines_and_crlf_are_read(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD + b"\r\n\r\n" + b'{"prompt": "\xe2\x80\xa8r", "answer": "a"}')
    prompts = source(path, held_out_path=write(tmp_path / "h.jsonl", questions(1)))
    assert {prompts.training(i).prompt_id for i in range(2)} == {"d.jsonl:1", "d.jsonl:3"}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"{oops", "not valid JSON .*each line must be one JSON object"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"prompt": "q", "answer": ' + b"9" * 10_000 + b"}", "not valid JSON"),
        (b'["q", "a"]', "a JSON object is needed, not a list"),
        (b"null", "a JSON object is needed, not null"),
        (
            b'{"question": "q", "answer": "a"}',
            "needs either `prompt` or `messages`, has neither \\(the row has `question`, `answer`\\); "
            "data.prompt_column names the prompt's",
        ),
        (
            b'{"prompt": "q", "solution": "a"}',
            "`answer`: missing or null \\(the row has `prompt`, `solution`\\); the ground truth is needed",
        ),
        (
            b'{"prompt": "q", "messages": [{"role": "user", "content": "q"}], "answer": "a"}',
            "needs either `prompt` or `messages`, has both",
        ),
        (b'{"prompt": 7, "answer": "a"}', "`prompt`: text is needed, not a int"),
        (b'{"prompt": " ", "answer": "a"}', "`prompt`: empty"),
        (b'{"prompt": "q"}', "`answer`: missing or null"),
        (b'{"prompt": "q", "answer": null}', "`answer`: missing or null"),
        (b'{"prompt": "q", "answer": "  "}', "`answer`: empty"),
        (b'{"prompt": "q", "answer": ["a"]}', "`answer`: text is needed, not a list"),
        (b'{"prompt": "q", "answer": true}', "`answer`: text is needed, not a bool"),
        (b'{"messages": [], "answer": "a"}', "`messages`: a list of one or more"),
        (b'{"messages": "q", "answer": "a"}', "`messages`: a list of one or more"),
        (b'{"messages": ["q"], "answer": "a"}', r"`messages`\[0\]: an object with exactly"),
        (
            b'{"messages": [{"role": "robot", "content": "q"}], "answer": "a"}',
            r"`messages`\[0\].role: one of system, user, assistant",
        ),
        (
            b'{"messages": [{"role": "user", "content": null}], "answer": "a"}',
            r"`messages`\[0\].content: text is needed, not null",
        ),
        (
            b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}, '
            b'{"type": "image_url", "image_url": {"url": "a.png"}}]}], "answer": "a"}',
            r'`messages`\[0\].content\[1\].type: is "image_url", and only parts of the type `text` are read',
        ),
        (
            b'{"messages": [{"role": "user", "content": [{"type": "text"}]}], "answer": "a"}',
            r"`messages`\[0\].content\[0\]: a part of the type `text` has exactly `type` and `text`",
        ),
        (
            b'{"messages": [{"role": "user", "content": ["q"]}], "answer": "a"}',
            r"`messages`\[0\].content\[0\]: a part .* is needed, not text",
        ),
        (
            b'{"messages": [{"role": "user", "content": []}], "answer": "a"}',
            r"`messages`\[0\].content: empty; text is needed",
        ),
        (b'{"prompt": "\xff", "answer": "a"}', "not valid UTF-8 .*save the file as UTF-8"),
        (b'{"prompt": "\\ud800", "answer": "a"}', "`prompt`: not valid Unicode"),
        (b'{"prompt": "q", "answer": "a", "x\\ud800": 1}', r"column 'x\\ud800': not valid Unicode"),
    ],
)
def test_a_malformed_row_is_an_error_with_file_line_and_reason(
    tmp_path: Path, raw: bytes, reason: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(GOOD + b"\n\n" + raw + b"\n" + GOOD)
    with pytest.raises(ValueError, match=rf"bad\.jsonl, line 3: {reason}"):
        source(path)


def test_a_malformed_held_out_file_is_named(tmp_path: Path) -> None:
    path, bad = write(tmp_path / "d.jsonl", questions(3)), tmp_path / "held.jsonl"
    bad.write_bytes(b"{}")
    with pytest.raises(ValueError, match=r"held\.jsonl, line 1: needs either"):
        source(path, held_out_path=bad)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.jsonl", "no such file"),
        ("data.csv", r"the name must end in \.jsonl or \.parquet"),
        ("empty.jsonl", "there are no rows"),
        ("blank.jsonl", "there are no rows"),
        ("folder.jsonl", "no such file"),
        ("text.parquet", "not a readable Parquet file"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "data.csv").write_text("prompt,answer\n")
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "blank.jsonl").write_text("\n \n")
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "text.parquet").write_text("not parquet")
    with pytest.raises(ValueError, match=f"{name}: {reason}"):
        source(tmp_path / name)


def test_parquet_rows_read_like_jsonl_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"prompt": f"question {i}", "answer": "7", "numbers": [i], "note": None} for i in range(200)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "d.parquet")
    from_parquet = source(tmp_path / "d.parquet")
    from_jsonl = source(write(tmp_path / "d.jsonl", rows))
    for index in range(50):
        ours, theirs = from_parquet.training(index), from_jsonl.training(index)
        assert (ours.text, ours.answer, ours.fields) == (theirs.text, theirs.answer, theirs.fields)


def test_a_malformed_parquet_row_is_an_error_by_line(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"prompt": "q", "answer": "a"}, {"prompt": "r", "answer": None}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "d.parquet")
    with pytest.raises(ValueError, match=r"d\.parquet, line 2: `answer`: missing or null"):
        source(tmp_path / "d.parquet")


def test_parquet_without_pyarrow_names_the_extra_to_install(tmp_path: Path) -> None:
    (tmp_path / "d.parquet").touch()
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from pathlib import Path\n"
        "from slipstream.prompts.reading import read_rows\n"
        "try: list(read_rows(Path(sys.argv[1])))\n"
        "except ValueError as error: print(error)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "d.parquet")]
    done = subprocess.run(command, env={"PYTHONPATH": "services"}, capture_output=True, check=True, text=True)
    assert "install `slipstream[learner]`" in done.stdout


def test_each_epoch_has_every_training_row_once_in_a_different_order(tmp_path: Path) -> None:
    prompts = source(write(tmp_path / "d.jsonl", questions(200)))
    assert prompts.held_out_size is not None
    rows = 200 - prompts.held_out_size
    epochs = [[prompts.training(e * rows + i).text for i in range(rows)] for e in range(3)]
    assert all(len(set(epoch)) == rows for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_order_depends_on_seed_and_index_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", questions(50))
    indices = [0, 500, 3, 120, 0, 77]
    first, second = source(path, seed=1), source(path, seed=1)
    reversed_prompts = [second.training(i) for i in reversed(indices)]
    assert [first.training(i) for i in indices] == reversed_prompts[::-1]
    other = source(path, seed=2)
    assert [first.training(i) for i in range(40)] != [other.training(i) for i in range(40)]


def test_the_split_does_not_depend_on_the_seed(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", questions(300))
    assert held_out_texts(source(path, seed=1)) == held_out_texts(source(path, seed=2))


def test_about_the_configured_fraction_is_held_out(tmp_path: Path) -> None:
    prompts = source(write(tmp_path / "d.jsonl", questions(2000)), held_out_fraction=0.2)
    assert prompts.held_out_size is not None
    assert 330 < prompts.held_out_size < 470


def test_held_out_rows_and_their_duplicates_are_never_trained_on(tmp_path: Path) -> None:
    duplicates = [{"prompt": f" question  {i}\n", "answer": "b"} for i in range(300)]
    prompts = source(write(tmp_path / "d.jsonl", questions(300) + duplicates), held_out_fraction=0.3)
    held_out = {" ".join(text.split()) for text in held_out_texts(prompts)}
    assert len(held_out) == prompts.held_out_size
    assert held_out.isdisjoint(" ".join(prompts.training(i).text.split()) for i in range(600))


def test_training_rows_that_are_in_the_held_out_file_are_left_out(tmp_path: Path) -> None:
    held_out = write(tmp_path / "h.jsonl", questions(3) + questions(3))
    prompts = source(write(tmp_path / "d.jsonl", questions(5)), held_out_path=held_out)
    assert prompts.held_out_size == 3
    assert {prompts.training(i).text for i in range(20)} == {"question 3", "question 4"}
    assert prompts.held_out(1) == prompts.held_out(4)


def test_a_held_out_file_that_covers_all_training_rows_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", questions(5))
    with pytest.raises(ValueError, match=r"d\.jsonl: no training rows: every prompt of the 5 is also in"):
        source(path, held_out_path=path)


@pytest.mark.parametrize(("fraction", "side"), [(0.001, "held-out"), (0.999, "training")])
def test_a_fraction_that_leaves_a_side_of_the_split_empty_is_an_error(
    tmp_path: Path, fraction: float, side: str
) -> None:
    path = write(tmp_path / "d.jsonl", questions(3))
    with pytest.raises(ValueError, match=f"no {side} rows: 3 rows cannot be split by held_out_fraction"):
        source(path, held_out_fraction=fraction)


def test_a_demonstration_is_the_training_row_with_its_answer(tmp_path: Path) -> None:
    prompts = load_file(FileData(path=write(tmp_path / "d.jsonl", questions(100))), seed=0)
    prompt, answer = prompts.demonstration(4)
    assert prompt == prompts.training(4)
    assert answer == prompt.answer


def test_a_column_of_demonstrations_is_imitated_and_the_answer_is_what_rewards_compare_with(
    tmp_path: Path,
) -> None:
    rows = [{**row, "thought": f"because of that, {row['answer']}"} for row in questions(100)]
    prompts = source(write(tmp_path / "d.jsonl", rows), demonstration_column="thought")
    prompt, demonstration = prompts.demonstration(4)
    assert prompt == prompts.training(4)
    assert demonstration == f"because of that, {prompt.answer}"
    assert prompt.answer.startswith("answer ")
    assert "thought" not in prompt.fields


def test_a_training_row_without_its_demonstration_is_an_error_and_a_held_out_row_needs_none(
    tmp_path: Path,
) -> None:
    held_out = write(tmp_path / "h.jsonl", [{"prompt": "other", "answer": "1"}])
    rows = [{"prompt": "q", "answer": "1", "thought": "so 1"}]
    path = write(tmp_path / "d.jsonl", rows)
    prompts = source(path, held_out_path=held_out, demonstration_column="thought")
    assert prompts.demonstration(0)[1] == "so 1"
    write(path, [*rows, {"prompt": "r", "answer": "2", "thought": None}])
    with pytest.raises(ValueError, match=r"d\.jsonl, line 2: `thought`: missing or null \(the row has "):
        source(path, held_out_path=held_out, demonstration_column="thought")


def test_content_in_parts_of_text_is_read_as_one_text(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "2+2"}, {"type": "text", "text": "=?"}]
    row = {"messages": [{"role": "user", "content": parts}], "answer": "4"}
    held_out = write(tmp_path / "h.jsonl", questions(1))
    prompts = source(write(tmp_path / "m.jsonl", [row]), held_out_path=held_out)
    assert prompts.training(0).messages == (ChatMessage(role="user", content="2+2=?"),)


def test_parts_of_parquet_rows_may_have_columns_that_are_null(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parts = [{"type": "text", "text": "2+2=?", "image": None}]
    row = {"messages": [{"role": "user", "content": parts}], "answer": "4"}
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "m.parquet")
    prompts = source(tmp_path / "m.parquet", held_out_path=write(tmp_path / "h.jsonl", questions(1)))
    assert prompts.training(0).messages == (ChatMessage(role="user", content="2+2=?"),)


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "d.jsonl", questions(100))
    assert source(Path("~/d.jsonl")).training(0).text.startswith("question ")
