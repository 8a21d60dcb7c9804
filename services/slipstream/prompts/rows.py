"""From rows to prompts; the error of a malformed row names file and line."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from slipstream.config.data import Columns
from slipstream.prompts.reading import Row, kind_of
from slipstream.records import ChatMessage, Prompt

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The source of rows, as it is named in errors and prompt ids."""

    name: str
    """Name in errors: a path, or a data set with its split."""
    short: str
    """Prefix of the prompt ids."""
    task: str
    """Task of the prompts."""
    unit: str
    """Unit of a number in errors: line or row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A prompt, and the text that supervised training imitates (None if it is not needed)."""

    prompt: Prompt
    demonstration: str | None


def read_examples(
    rows: Iterable[tuple[int, Row]], origin: Origin, columns: Columns, *, demonstrated: bool
) -> list[Example]:
    """Return all rows as examples, in their order; with `demonstrated` each row needs a demonstration.

    Errors: ValueError naming the origin, the line, the fault and what is needed.
    """
    examples = [_example(row, origin, number, columns, demonstrated=demonstrated) for number, row in rows]
    if not examples:
        raise ValueError(f"{origin.name}: there are no rows; at least one is needed")
    return examples


def _example(row: Row, origin: Origin, number: int, columns: Columns, *, demonstrated: bool) -> Example:
    where = f"{origin.name}, {origin.unit} {number}"
    text, turns = row.get(columns.prompt_column), row.get(columns.messages_column)
    if (text is None) == (turns is None):
        present = "neither" if text is None else "both"
        raise ValueError(
            f"{where}: needs either `{columns.prompt_column}` or `{columns.messages_column}`, has {present}"
            + (f"{_others(row)}; data.prompt_column names the prompt's" if text is None else "")
        )
    prompt = Prompt(
        prompt_id=f"{origin.short}:{number}",
        task=origin.task,
        answer=_answer(row, where, columns.answer_column),
        text="" if text is None else _text(text, f"{where}: `{columns.prompt_column}`"),
        messages=() if turns is None else _messages(turns, f"{where}: `{columns.messages_column}`"),
        fields=_fields(row, where, columns),
    )
    demonstration = _demonstration(row, where, columns) if demonstrated else None
    return Example(prompt=prompt, demonstration=demonstration)


def _demonstration(row: Row, where: str, columns: Columns) -> str | None:
    column = columns.demonstration_column
    if column is None:
        return None
    if row.get(column) is None:
        raise ValueError(
            f"{where}: `{column}`: missing or null{_others(row)}; a demonstration is needed in every "
            "training row; without demonstration_column the answers are imitated"
        )
    return _text(row[column], f"{where}: `{column}`")


def _fields(row: Row, where: str, columns: Columns) -> dict[str, str]:
    """Return the other columns that are not null: text as it is, other values as JSON."""
    own_columns = {
        *(columns.prompt_column, columns.messages_column),
        *(columns.answer_column, columns.demonstration_column),
    }
    return {
        _encodable(key, f"{where}: column {key!a}"): _field(value, f"{where}: column {key!a}")
        for key, value in row.items()
        if key not in own_columns and value is not None
    }


def _answer(row: Row, where: str, column: str) -> str:
    value = row.get(column)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None:
        raise ValueError(
            f"{where}: `{column}`: missing or null{_others(row)}; the ground truth is needed as text or a "
            "whole number, and data.answer_column names its column"
        )
    return _text(value, f"{where}: `{column}`")


def _others(row: Row) -> str:
    """Return a note with the columns of a row that are not null."""
    present = [f"`{key}`" for key, value in row.items() if value is not None]
    return f" (the row has {', '.join(present)})" if present else ""


def _messages(turns: Any, where: str) -> tuple[ChatMessage, ...]:
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"{where}: a list of one or more {{role, content}} is needed")
    return tuple(_message(turn, f"{where}[{position}]") for position, turn in enumerate(turns))


def _message(turn: Any, where: str) -> ChatMessage:
    if not isinstance(turn, dict) or set(turn) != {"role", "content"}:
        raise ValueError(f"{where}: an object with exactly `role` and `content` is needed")
    if turn["role"] not in ROLES:
        raise ValueError(f"{where}.role: one of {', '.join(ROLES)} is needed")
    return ChatMessage(role=turn["role"], content=_content(turn["content"], f"{where}.content"))


def _content(content: Any, where: str) -> str:
    """Return the text of a message, which may consist of parts: [{"type": "text", "text": …}, …]."""
    if not isinstance(content, list):
        return _text(content, where)
    parts = [_part(part, f"{where}[{position}]") for position, part in enumerate(content)]
    return _text("".join(parts), where)


def _part(part: Any, where: str) -> str:
    """Return the text of one part. Parquet adds the keys of all parts to each part, as nulls."""
    if not isinstance(part, dict):
        raise ValueError(f'{where}: a part {{"type": "text", "text": …}} is needed, not {kind_of(part)}')
    present = {key: value for key, value in part.items() if value is not None}
    if present.get("type") != "text":
        raise ValueError(
            f"{where}.type: is {json.dumps(present.get('type'))}, and only parts of the type `text` are "
            "read; leave the row out"
        )
    if set(present) != {"type", "text"} or not isinstance(present["text"], str):
        raise ValueError(f"{where}: a part of the type `text` has exactly `type` and `text`, which is text")
    text: str = present["text"]
    return text


def _field(value: Any, where: str) -> str:
    return _encodable(value if isinstance(value, str) else json.dumps(value, default=str), where)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: text is needed, not {kind_of(value)}")
    if not value.strip():
        raise ValueError(f"{where}: empty; text is needed")
    return _encodable(value, where)


def _encodable(text: str, where: str) -> str:
    """Return the text. Errors: ValueError for a lone surrogate, which protobuf cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: not valid Unicode ({error.reason}); remove the escape") from error
    return text
