"""The newest sample of a run, as a few lines that cannot steer a terminal."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.cli.launch.history import Row
from slipstream.cli.samples import shown

READ_BYTES, MOST_BYTES = 2**16, 2**25
"""Bytes that are read from the end of samples.jsonl at first, and at most."""
BEGINNING, END = 2000, 500
"""Characters of a longer text that are looked at."""


def read_last_sample(path: Path) -> Row | None:
    """Return the last complete line of samples.jsonl; None if there is none, or it is no JSON object."""
    line = _last_line(path)
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def describe_rewards(sample: Row) -> str:
    """Return "exact_match 1, format 0.5"."""
    rewards = sample.get("rewards")
    values = rewards.items() if isinstance(rewards, Mapping) else ()
    return one_line(", ".join(f"{name} {_number(value)}" for name, value in values))


def prompt_of(sample: Row) -> str:
    """Return the prompt; of a conversation, its last message."""
    prompt = sample.get("prompt", "")
    if isinstance(prompt, Sequence) and not isinstance(prompt, str):
        prompt = prompt[-1].get("content", "") if prompt and isinstance(prompt[-1], Mapping) else ""
    return str(prompt)


def one_line(text: str) -> str:
    """Return a text without line feeds that cannot steer a terminal."""
    return shown(text).replace("\n", " ")


def few_lines(text: str, *, width: int, count: int) -> list[str]:
    """Return a text in `count` lines of `width` cells at most: its beginning, and its last line."""
    from rich.cells import chop_cells

    if len(text) > BEGINNING + END:
        text = f"{text[:BEGINNING]}…{text[-END:]}"
    lines = [part for line in shown(text.strip()).split("\n") for part in chop_cells(line, width) or [""]]
    if len(lines) <= count:
        return lines
    last = chop_cells(f"… {lines[-1].strip()}", width)[0]
    return [*lines[: count - 1], last] if count > 1 else [last]


def _last_line(path: Path) -> bytes:
    """Return the last line that ends with a newline; empty without one within MOST_BYTES."""
    try:
        with path.open("rb") as stream:
            size, count = stream.seek(0, 2), READ_BYTES
            while True:
                stream.seek(max(0, size - count))
                complete, _, _ = stream.read(min(count, size)).rpartition(b"\n")
                _, newline, line = complete.rpartition(b"\n")
                if newline or count >= size or count >= MOST_BYTES:
                    return line
                count *= 4
    except OSError:
        return b""


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)
