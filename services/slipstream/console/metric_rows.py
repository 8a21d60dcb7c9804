"""The rows of a run's metrics.jsonl in memory, read as they are appended, and their columns for charts."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic_core import from_json

from slipstream.cli.launch.history import History, Row, Tail, is_step
from slipstream.records.json_values import finite_number

DROPPED: Final = frozenset({"dispatch_indices", "by_staleness"})
"""Parts of a row that are large, and that no page shows."""
MOST_POINTS: Final = 2000
HEAD_BYTES: Final = 256
"""Bytes by which a file is known: its first row has the time of the start."""


class MetricRows:
    """Invariant: the history has every complete line that the file had at the last call of `refresh`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tail = Tail(path)
        self._lock = threading.Lock()
        self._history = History()
        self._head = b""
        self._size = 0
        self._keys: dict[str, None] = {}
        self.unreadable = 0
        """Number of lines that are not rows."""

    def refresh(self) -> History:
        """Read the lines that are new, and return the history. Errors: OSError."""
        with self._lock:
            if self._is_replaced():
                self._tail, self._history, self._keys = Tail(self.path), History(), {}
                self.unreadable = 0
            for line in self._tail.lines():
                self._add(line)
            return self._history

    def numeric_keys(self) -> list[str]:
        """Return the keys that a chart can show; parts of a mapping as `rewards.NAME`."""
        with self._lock:
            return sorted(key for key in self._keys if key not in ("step", "time"))

    def _add(self, line: bytes) -> None:
        row = _row(line)
        if row is None or (row.get("event") == "step" and not is_step(row.get("step"))):
            self.unreadable += bool(line.strip())
            return
        self._history.add(row)
        if row.get("event") == "step":
            self._keys.update(dict.fromkeys(_numeric(row)))

    def _is_replaced(self) -> bool:
        """Return whether the file is another one than at the last call, and remember it."""
        try:
            with self.path.open("rb") as stream:
                head, size = stream.read(HEAD_BYTES), os.fstat(stream.fileno()).st_size
        except FileNotFoundError:
            head, size = b"", 0
        replaced = size < self._size or not head.startswith(self._head)
        self._head, self._size = head, size
        return replaced


def _numeric(row: Row) -> Iterator[str]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from (f"{name}.{part}" for part, inner in value.items() if finite_number(inner) is not None)
        elif finite_number(value) is not None:
            yield name


def _row(line: bytes) -> Row | None:
    try:
        row = from_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict):
        return None
    return {name: value for name, value in row.items() if name not in DROPPED}


def columns(
    history: History, keys: Sequence[str], *, points: int | None = MOST_POINTS
) -> dict[str, list[float | None]]:
    """Return `step` and the values of each key, at most about `points` of each; None: all.

    Of a longer run each key keeps the steps at which it is lowest and highest in equal ranges of steps, so
    that no peak is lost: all keys share the steps of all of them.
    """
    steps = sorted(history.steps)
    values = {key: [_value(history.steps[step], key) for step in steps] for key in keys}
    if points is not None and len(steps) > points:
        kept = _extremes(list(values.values()), len(steps), max(1, points // (2 * max(1, len(keys)))))
        steps = [steps[index] for index in kept]
        values = {key: [column[index] for index in kept] for key, column in values.items()}
    return {"step": [float(step) for step in steps], **values}


def _extremes(values: Sequence[Sequence[float | None]], count: int, ranges: int) -> list[int]:
    """Return the indices of the lowest and highest value of each column in each range, and both ends."""
    kept = {0, count - 1}
    for number in range(ranges):
        start, end = count * number // ranges, count * (number + 1) // ranges
        for column in values:
            present = [(column[index], index) for index in range(start, end) if column[index] is not None]
            if present:
                kept |= {min(present)[1], max(present)[1]}
    return sorted(kept)


def _value(row: Row, key: str) -> float | None:
    name, _, part = key.partition(".")
    value = row.get(name)
    if part:
        value = value.get(part) if isinstance(value, Mapping) else None
    return finite_number(value)
