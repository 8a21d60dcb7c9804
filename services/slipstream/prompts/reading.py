"""Rows of a JSONL or Parquet file, each with its number in the file, counted from 1."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from slipstream.config.paths import located

Row = Mapping[str, Any]


def read_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield number and row of every row of the file; blank lines of JSONL are skipped.

    Errors: ValueError naming the file, the line if there is one, and what is needed.
    """
    if path.suffix not in READERS:
        raise ValueError(f"{path}: the name must end in {' or '.join(READERS)}")
    if not path.is_file():
        raise ValueError(f"{located(path)}: no such file")
    return READERS[path.suffix](path)


def kind_of(value: Any) -> str:
    """Return the kind of a JSON value, for messages."""
    names = {"NoneType": "null", "dict": "an object", "list": "a list", "str": "text"}
    return names.get(type(value).__name__, f"a {type(value).__name__}")


def _read_jsonl(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            if raw.strip():
                yield line, _json_object(raw, f"{path}, line {line}")


def _json_object(raw: bytes, where: str) -> Row:
    try:
        row = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not valid UTF-8 ({error}); save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not valid JSON ({error}); each line must be one JSON object") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where}: a JSON object is needed, not {kind_of(row)}")
    return row


def _read_parquet(path: Path) -> Iterator[tuple[int, Row]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(
            f"{path}: Parquet needs pyarrow; install `slipstream[learner]`, or use .jsonl"
        ) from error
    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a readable Parquet file: {error}") from error
    yield from enumerate(rows, start=1)


READERS: Mapping[str, Callable[[Path], Iterator[tuple[int, Row]]]] = {
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}
