"""From rows to prompts; a malformed row is an error that names file and line."""

import json
from pathlib import Path
from typing import Any

from slipstream.config.data import FileData
from slipstream.tasks.reading import Row, kind_of, read_rows
from slipstream.types import ChatMessage, Prompt

ROLES = ("system", "user", "assistant")
MESSAGES_COLUMN = "messages"


def read_prompts(path: Path, columns: FileData) -> list[Prompt]:
    """All prompts of a file, in its order; `line` in prompt ids and errors counts rows from 1.

    Errors: ValueError naming the file, the line, what is wrong and what is needed.
    """
    prompts = [_prompt(row, path, line, columns) for line, row in read_rows(path)]
    if not prompts:
        raise ValueError(f"{path}: the file has no rows; at least one is needed")
    return prompts


def _prompt(row: Row, path: Path, line: int, columns: FileData) -> Prompt:
    where = f"{path}, line {line}"
    text, turns = row.get(columns.prompt_column), row.get(MESSAGES_COLUMN)
    if (text is None) == (turns is None):
        found = "neither" if text is None else "both"
        raise ValueError(
            f"{where}: needs either `{columns.prompt_column}` or `{MESSAGES_COLUMN}`, has {found}"
        )
    return Prompt(
        prompt_id=f"{path.name}:{line}",
        task=path.stem,
        answer=_answer(row.get(columns.answer_column), f"{where}: `{columns.answer_column}`"),
        text="" if text is None else _text(text, f"{where}: `{columns.prompt_column}`"),
        messages=() if turns is None else _messages(turns, f"{where}: `{MESSAGES_COLUMN}`"),
        fields=_fields(row, where, columns),
    )


def _fields(row: Row, where: str, columns: FileData) -> dict[str, str]:
    """The further columns that are not null: text as it is, anything else as JSON."""
    used = {columns.prompt_column, MESSAGES_COLUMN, columns.answer_column}
    return {
        _encodable(key, f"{where}: column {key!a}"): _field(value, f"{where}: column {key!a}")
        for key, value in row.items()
        if key not in used and value is not None
    }


def _answer(value: Any, where: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None:
        raise ValueError(f"{where}: missing or null; the ground truth is needed as text or a whole number")
    return _text(value, where)


def _messages(turns: Any, where: str) -> tuple[ChatMessage, ...]:
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"{where}: a list of one or more {{role, content}} is needed")
    return tuple(_message(turn, f"{where}[{position}]") for position, turn in enumerate(turns))


def _message(turn: Any, where: str) -> ChatMessage:
    if not isinstance(turn, dict) or set(turn) != {"role", "content"}:
        raise ValueError(f"{where}: an object with exactly `role` and `content` is needed")
    if turn["role"] not in ROLES:
        raise ValueError(f"{where}.role: one of {', '.join(ROLES)} is needed")
    return ChatMessage(role=turn["role"], content=_text(turn["content"], f"{where}.content"))


def _field(value: Any, where: str) -> str:
    return _encodable(value if isinstance(value, str) else json.dumps(value, default=str), where)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: text is needed, not {kind_of(value)}")
    if not value.strip():
        raise ValueError(f"{where}: empty; text is needed")
    return _encodable(value, where)


def _encodable(text: str, where: str) -> str:
    """The text, unless it holds a lone surrogate (a JSON escape can), which no message can carry."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: not valid Unicode ({error.reason}); remove the escape") from error
    return text
