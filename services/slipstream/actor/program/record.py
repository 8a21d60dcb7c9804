"""What a program gets of its prompt, and what the rewards see of its episode."""

import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from slipstream.config.environments import FILE_PREFIX
from slipstream.records import Prompt

MOST_VARIABLE_BYTES: Final = 100_000
"""Longest environment variable that is set; Linux takes 128 KiB."""


def prompt_json(prompt: Prompt, fields: Sequence[str]) -> str:
    """Return the prompt for the program in JSON: `text` or `messages`, and the listed columns as `fields`."""
    shown: dict[str, Any] = {"id": prompt.prompt_id}
    if prompt.messages:
        shown["messages"] = [{"role": each.role, "content": each.content} for each in prompt.messages]
    else:
        shown["text"] = prompt.text
    shown["fields"] = {name: prompt.fields[name] for name in fields if name in prompt.fields}
    return json.dumps(shown, ensure_ascii=False)


def prompt_text(prompt: Prompt) -> str:
    """Return the text of a prompt; of messages, the content of the last one."""
    return prompt.text or prompt.messages[-1].content


def read_file(folder: Path, name: str, limit: int) -> str | None:
    """Return the text of the first `limit` bytes of a file in a folder.

    None if there is no regular file of this name. A link is not followed, because it could lead to any file.
    """
    try:
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return os.read(descriptor, limit).decode(errors="replace")
    finally:
        os.close(descriptor)


def answer_file(source: str) -> tuple[str, ...]:
    """Return the name of the file that `answer_from` names; empty if it names another source."""
    return (source.removeprefix(FILE_PREFIX),) if source.startswith(FILE_PREFIX) else ()


def answer_of(
    source: str,
    *,
    reply: str,
    conversation: str,
    stdout: str,
    exit_status: int,
    files: Mapping[str, str | None],
) -> str:
    """Return the text that the rewards score, from the source that `answer_from` names.

    A file that the program has not written is an empty answer: whether there is one depends on the policy.
    """
    if source.startswith(FILE_PREFIX):
        return files[source.removeprefix(FILE_PREFIX)] or ""
    record = {
        "reply": reply,
        "conversation": conversation,
        "exit_status": exit_status,
        "stdout": stdout,
        "files": dict(files),
    }
    if source == "record":
        return json.dumps(record, ensure_ascii=False)
    return str(record[source])
