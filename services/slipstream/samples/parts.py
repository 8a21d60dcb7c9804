"""The files of stored completions: `FIRST-LAST.parquet`, the rows of the steps from FIRST to LAST.

A part appears under its name when it is whole, and is never changed. Several parts become one by `merge`: the
new part appears first, then the old ones go. So a reader at any moment, and after a crash, finds each row in
one part that no other part contains.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

SUFFIX: Final = ".parquet"
PARTIAL: Final = ".partial"
DIGITS: Final = 9
ROWS_OF_A_BLOCK: Final = 4096
"""Rows of one row group of a file, which a reader reads or skips as a whole."""


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A file with the rows of some steps."""

    first: int
    last: int
    path: Path

    @property
    def steps(self) -> int:
        """Number of steps from the first to the last."""
        return self.last - self.first + 1

    def contains(self, other: "Part") -> bool:
        """Return whether all steps of another part are also steps of this one."""
        return self.first <= other.first and other.last <= self.last and self.steps > other.steps


def parts_of(folder: Path) -> list[Part]:
    """Return the parts of a folder in order, without those that a merged part contains."""
    parts = sorted(filter(None, map(_part, folder.glob(f"*{SUFFIX}"))))
    return [part for part in parts if not any(other.contains(part) for other in parts)]


def write_part(folder: Path, first: int, last: int, tables: Iterable[pa.Table], schema: pa.Schema) -> Part:
    """Write a part that appears when it is whole; columns that a table lacks are null. Errors: OSError."""
    path = folder / f"{first:0{DIGITS}}-{last:0{DIGITS}}{SUFFIX}"
    partial = path.with_name(path.name + PARTIAL)
    try:
        with open(partial, "wb") as file:
            with pq.ParquetWriter(file, schema, compression="zstd", compression_level=1) as writer:
                for table in tables:
                    writer.write_table(_with_columns(table, schema), row_group_size=ROWS_OF_A_BLOCK)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return Part(first, last, path)


def _with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with all columns of a schema, in its order; a part of an older release lacks some."""
    if table.schema == schema:
        return table
    return pa.concat_tables([schema.empty_table(), table], promote_options="default").select(schema.names)


def merge(folder: Path, parts: Sequence[Part], schema: pa.Schema) -> Part:
    """Make one part of several that follow one another. Errors: OSError."""
    tables = (table for part in parts for table in blocks(part))
    merged = write_part(folder, parts[0].first, parts[-1].last, tables, schema)
    remove(parts, merged)
    return merged


def blocks(part: Part) -> Iterable[pa.Table]:
    """Yield the rows of a part, some thousands at a time."""
    with pq.ParquetFile(part.path) as file:
        for index in range(file.num_row_groups):
            yield file.read_row_group(index)


def remove(parts: Iterable[Part], kept: Part | None = None) -> None:
    """Remove the files of parts, except that of `kept`."""
    for part in parts:
        if kept is None or part.path != kept.path:
            part.path.unlink(missing_ok=True)


def clean(folder: Path) -> None:
    """Remove what a crash has left: unfinished files, and parts that a merged part contains."""
    for partial in folder.glob(f"*{PARTIAL}"):
        partial.unlink(missing_ok=True)
    current = {part.path for part in parts_of(folder)}
    for path in folder.glob(f"*{SUFFIX}"):
        if path not in current and _part(path) is not None:
            path.unlink(missing_ok=True)


def _part(path: Path) -> Part | None:
    """Return the part of a file name; None for a file of another kind."""
    with suppress(ValueError):
        first, last = map(int, path.name.removesuffix(SUFFIX).split("-"))
        return Part(first, last, path)
    return None
