"""Read groups of answers from the rows of a user's file. A bad row is reported with its line.

The file is JSONL, compressed JSONL, Parquet, or JSONL on standard input."""

import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, cast

from slipstream.config.data import FileData
from slipstream.prompts.reading import kind_of
from slipstream.prompts.reading import read_rows as read_parquet
from slipstream.records import ChatMessage, FinishReason, Prompt
from slipstream.verifier.reward import Answer

COLUMNS = {"prompt": "prompt", "answer": "answer", "completion": "completion", "tokens": "tokens", "id": "id"}
"""Use of a column → its default name; --column sets another."""
COMPLETIONS = "completions"
"""Name of the column that holds several completions."""
MESSAGES = "messages"
"""Name of the column with a conversation instead of a prompt; its last message may be the completion."""

SOURCE = "source"
"""Name of the column with the source of a prompt, for rewards that apply to some sources of a mixture."""
STDIN = Path("-")
MAX_LINE_BYTES = 64 * 1024 * 1024


class BadRow(ValueError):
    """A row that cannot be scored; the message names its line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line: a prompt and its completions."""

    where: str
    """File and line."""
    line: int
    """From 1."""
    prompt: Prompt
    answers: tuple[Answer, ...]


def column_names(options: list[str], data: object = None) -> dict[str, str]:
    """Return the names of the columns, by `--column USE=NAME` or by a run's data. Errors: ValueError."""
    names = dict(COLUMNS)
    if isinstance(data, FileData):
        names |= {"prompt": data.prompt_column, "answer": data.answer_column}
    for option in options:
        use, separator, name = option.partition("=")
        if not separator or not name or use not in COLUMNS:
            raise ValueError(f"--column {option}: write it as USE=NAME, with USE one of {', '.join(COLUMNS)}")
        names[use] = name
    return names


def read_rows(path: Path, columns: Mapping[str, str], *, lengths: bool = False) -> Iterator[Row | BadRow]:
    """Yield the rows of a file in order; a row that cannot be scored is a BadRow with the reason.

    A null counts as a missing column, as in the rows of a run. `lengths`: whether each row needs the lengths
    of its completions.

    Errors: OSError when the file cannot be read; ValueError for an invalid Parquet or gzip file.
    """
    for line, content in read_objects(path):
        where = f"{path}:{line}"
        try:
            if isinstance(content, str):
                raise ValueError(content)
            row = {name: value for name, value in content.items() if value is not None}
            yield _row(where, line, row, columns, lengths)
        except ValueError as error:
            yield BadRow(f"{where}: {error}")


def _row(where: str, line: int, row: Mapping[str, Any], columns: Mapping[str, str], lengths: bool) -> Row:
    row = _split_conversation(row, columns)
    if lengths and columns["tokens"] not in row:
        raise ValueError(f"has no `{columns['tokens']}`, which a reward reads; --column tokens=NAME names it")
    return Row(where=where, line=line, prompt=_prompt(row, columns, line), answers=_answers(row, columns))


def _split_conversation(row: Mapping[str, Any], columns: Mapping[str, str]) -> Mapping[str, Any]:
    """Return a row with its `messages` as the prompt.

    If the row has no completion and the last message is the assistant's, that message becomes the completion.
    """
    prompt, one = columns["prompt"], columns["completion"]
    if prompt in row or MESSAGES not in row:
        return row
    rest = {key: value for key, value in row.items() if key != MESSAGES}
    turns = _messages(row[MESSAGES], MESSAGES)
    question = [{"role": turn.role, "content": turn.content} for turn in turns]
    if one not in row and COMPLETIONS not in row and turns and turns[-1].role == "assistant":
        return {**rest, prompt: question[:-1], one: turns[-1].content}
    return {**rest, prompt: question}


def _prompt(row: Mapping[str, Any], columns: Mapping[str, str], line: int) -> Prompt:
    if columns["prompt"] not in row:
        raise ValueError(f"{_lacks(row, columns['prompt'], MESSAGES)}; --column prompt=NAME names another")
    prompt = row[columns["prompt"]]
    if not prompt:
        raise ValueError("the prompt is empty; a text is needed, or messages before the completion")
    text, messages = (prompt, ()) if isinstance(prompt, str) else ("", _messages(prompt, columns["prompt"]))
    used = {*columns.values(), COMPLETIONS}
    return Prompt(
        prompt_id=str(row.get(columns["id"], f"line {line}")),
        task="score",
        answer=_scalar(row.get(columns["answer"], ""), columns["answer"]),
        text=text,
        messages=messages,
        source=_field(row.get(SOURCE, "")),
        fields={name: _field(value) for name, value in row.items() if name not in used},
    )


def _messages(value: Any, name: str) -> tuple[ChatMessage, ...]:
    if not isinstance(value, list):
        raise ValueError(f"`{name}` must be a text or a list of messages, got {kind_of(value)}")
    if not all(map(_is_message, value)):
        raise ValueError(f"`{name}`: every message needs the texts `role` and `content`")
    return tuple(ChatMessage(role=turn["role"], content=turn["content"]) for turn in value)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))


def _answers(row: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[Answer, ...]:
    one = columns["completion"]
    name = one if one in row else COMPLETIONS
    if name not in row:
        raise ValueError(f"{_lacks(row, one, COMPLETIONS)}; --column completion=NAME names another")
    value = row[name]
    several = isinstance(value, list) and not (name == one and any(map(_is_message, value)))
    texts = [_text(each, name) for each in (value if several else [value])]
    if not texts:
        raise ValueError(f"`{name}` must be a text, or a list of at least one, got []")
    lengths = _lengths(row.get(columns["tokens"], 0), columns["tokens"], len(texts))
    return tuple(
        Answer(text=text, tokens=tokens, finish_reason=FinishReason.STOP)
        for text, tokens in zip(texts, lengths, strict=True)
    )


def _text(value: Any, name: str) -> str:
    """Return a completion as text. It may be a message, alone or in a list."""
    content = value[0] if isinstance(value, list) and len(value) == 1 else value
    content = content["content"] if _is_message(content) else content
    if not isinstance(content, str):
        got = json.dumps(value, default=str)[:60]
        raise ValueError(f"`{name}` must be a text or one message, or a list of at least one, got {got}")
    return content


def _lengths(value: Any, name: str, number: int) -> list[int]:
    """Return the tokens of each completion; 0 if the row has no lengths."""
    lengths = value if isinstance(value, list) else [value] * number
    if len(lengths) != number or not all(type(length) is int and length >= 0 for length in lengths):
        raise ValueError(f"`{name}` must be a whole number, or one for each of {number} completions")
    return lengths


def _lacks(row: Mapping[str, Any], *names: str) -> str:
    has = ", ".join(f"`{name[:40]}`" for name in list(row)[:10]) or "nothing"
    return f"has no {' or '.join(f'`{name}`' for name in names)}, but {has}"


def _scalar(value: Any, name: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"`{name}` must be a text or a number, got {kind_of(value)}")
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"`{name}` must be a text or a number, got {value}")
    return str(value)


def _field(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def read_objects(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yield the number of each line, and its object or the reason why it has none; skip empty lines.

    Errors: OSError when the file cannot be read; ValueError for a file that is not valid Parquet
    or gzip, or is cut off.
    """
    if path.suffix == ".parquet":
        yield from ((number, dict(row)) for number, row in read_parquet(path))
        return
    with _opened(path) as lines:
        for number, line in enumerate(_bounded(lines), 1):
            if line.strip():
                yield number, _object(line)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if path == STDIN:
        yield sys.stdin.buffer
        return
    with cast("BinaryIO", gzip.open(path)) if path.suffix == ".gz" else path.open("rb") as lines:
        try:
            yield lines
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}: not a readable gzip file: {error}") from error


def _bounded(lines: BinaryIO) -> Iterator[bytes]:
    """Yield lines, each cut one byte after the limit."""
    while line := lines.readline(MAX_LINE_BYTES + 1):
        rest = line
        while rest and not rest.endswith(b"\n") and len(rest) > MAX_LINE_BYTES:
            rest = lines.readline(MAX_LINE_BYTES + 1)
        yield line


def _object(line: bytes) -> dict[str, Any] | str:
    if len(line) > MAX_LINE_BYTES:
        return f"more than {MAX_LINE_BYTES} bytes in a line; at most that many are read"
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return f"is not UTF-8: {error}"
    except (ValueError, RecursionError) as error:
        return f"is not JSON: {error}; each line must be one object"
    return row if isinstance(row, dict) else f"needs an object, got {kind_of(row)}"
