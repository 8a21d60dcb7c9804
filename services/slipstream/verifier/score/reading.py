"""Read the rows of a user's file: JSONL, compressed JSONL, Parquet, or JSONL on standard input."""

import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from slipstream.prompts.reading import kind_of
from slipstream.prompts.reading import read_rows as read_parquet

STDIN = Path("-")
MAX_LINE_BYTES = 64 * 1024 * 1024


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
    with cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb") as lines:
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
