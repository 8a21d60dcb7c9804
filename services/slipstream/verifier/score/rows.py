"""From the lines of a user's file to groups of answers; what is wrong with a line is said by its number."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.types import ChatMessage, FinishReason, Prompt
from slipstream.verifier.reward import Answer

COLUMNS = {"prompt": "prompt", "answer": "answer", "completion": "completion", "tokens": "tokens", "id": "id"}
"""What a column is for → its name, unless --column names another."""
LISTS = {"completion": "completions"}
"""Name of a column whose list holds several."""
MAX_LINE_BYTES = 64 * 1024 * 1024


class BadRow(ValueError):
    """A line that cannot be scored; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line: a prompt and its completions."""

    line: int
    """From 1."""
    prompt: Prompt
    answers: tuple[Answer, ...]


def column_names(given: list[str]) -> dict[str, str]:
    """The columns after `--column USE=NAME`. Errors: ValueError."""
    names = dict(COLUMNS)
    for option in given:
        use, separator, name = option.partition("=")
        if not separator or not name or use not in COLUMNS:
            raise ValueError(f"--column {option}: write it as USE=NAME, with USE one of {', '.join(COLUMNS)}")
        names[use] = name
    return names


def read_rows(path: Path, columns: Mapping[str, str]) -> Iterator[Row | BadRow]:
    """The rows of a JSONL file in order, and in the place of each bad one why it is; empty lines are none.

    Errors: OSError when the file cannot be read.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield _row(number, line, columns)
                except ValueError as error:
                    yield BadRow(f"{path}:{number}: {error}")


def _row(number: int, line: bytes, columns: Mapping[str, str]) -> Row:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"{len(line)} bytes; at most {MAX_LINE_BYTES} are read")
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"needs an object, got {type(row).__name__}")
    prompt_id = str(row.get(columns["id"], f"line {number}"))
    return Row(line=number, prompt=_prompt(row, columns, prompt_id), answers=_answers(row, columns))


def _prompt(row: Mapping[str, Any], columns: Mapping[str, str], prompt_id: str) -> Prompt:
    asked = row.get(columns["prompt"])
    if not asked:
        raise ValueError(f"has no `{columns['prompt']}`; --column prompt=NAME names another")
    text, messages = (asked, ()) if isinstance(asked, str) else ("", _messages(asked, columns["prompt"]))
    truth = row.get(columns["answer"], "")
    used = {*columns.values(), *LISTS.values()}
    return Prompt(
        prompt_id=prompt_id,
        task="score",
        answer=_scalar(truth, columns["answer"]),
        text=text,
        messages=messages,
        fields={name: _field(value) for name, value in row.items() if name not in used},
    )


def _messages(value: Any, name: str) -> tuple[ChatMessage, ...]:
    if not isinstance(value, list):
        raise ValueError(f"`{name}` must be a text or a list of messages, got {type(value).__name__}")
    for turn in value:
        if not isinstance(turn, dict) or not all(isinstance(turn.get(k), str) for k in ("role", "content")):
            raise ValueError(f"`{name}`: every message needs the texts `role` and `content`")
    return tuple(ChatMessage(role=turn["role"], content=turn["content"]) for turn in value)


def _answers(row: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[Answer, ...]:
    one, many = columns["completion"], LISTS["completion"]
    name = one if one in row else many
    if name not in row:
        raise ValueError(f"has neither `{one}` nor `{many}`; --column completion=NAME names another")
    value = row[name]
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"`{name}` must be a text, or a list of at least one, got {json.dumps(value)[:60]}")
    lengths = _lengths(row.get(columns["tokens"], 0), columns["tokens"], len(texts))
    return tuple(
        Answer(text=text, tokens=tokens, finish_reason=FinishReason.STOP)
        for text, tokens in zip(texts, lengths, strict=True)
    )


def _lengths(value: Any, name: str, number: int) -> list[int]:
    """Tokens of each completion; 0 where the row does not say."""
    lengths = value if isinstance(value, list) else [value] * number
    if len(lengths) != number or not all(type(length) is int and length >= 0 for length in lengths):
        raise ValueError(f"`{name}` must be a whole number, or one for each of {number} completions")
    return lengths


def _scalar(value: Any, name: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"`{name}` must be a text or a number, got {type(value).__name__}")
    return str(value)


def _field(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
