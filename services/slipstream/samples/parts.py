"""Writes and merges the files of stored completions.

A part appears under its name when it is whole. Several parts become one by `merge`: the new part appears
first, then the old ones go. So a reader at any moment, and after a crash, finds each row in one part that no
other part contains.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slipstream.samples.folder import SUFFIX, Part, part_of, parts_of

PARTIAL: Final = ".partial"
DIGITS: Final = 9
ROWS_OF_A_BLOCK: Final = 16384
"""Most rows of one row group of a file, which a reader reads or skips as a whole."""
BYTES_OF_A_BLOCK: Final = 8 << 20
"""Bytes in memory from which on a row group is full. A reader decodes as many to show one completion."""
LOOKED_UP: Final = ("step", "group", "state", "reward", "tokens", "staleness", "largest_ratio", "advantage")
"""Columns of which each row group names the least and the largest value, so that a reader can skip it."""
REPEATED: Final = ("state", "reason", "group", "source", "prompt", "answer", "finish_reason", "worker")
"""Columns of which each row group has a dictionary, because neighbours have equal values."""


def write_part(folder: Path, first: int, last: int, tables: Iterable[pa.Table], schema: pa.Schema) -> Part:
    """Write a part that appears when it is whole. Errors: OSError.

    A column that a table lacks is null, as in the parts of an earlier version.
    """
    path = folder / f"{first:0{DIGITS}}-{last:0{DIGITS}}{SUFFIX}"
    partial = path.with_name(path.name + PARTIAL)
    try:
        with open(partial, "wb") as file:
            with _writer(file, schema) as writer:
                for table in _full_blocks(tables, schema):
                    writer.write_table(table, row_group_size=ROWS_OF_A_BLOCK)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return Part(first, last, path)


def merge(folder: Path, parts: Sequence[Part], schema: pa.Schema) -> Part:
    """Make one part of several that follow one another. Errors: OSError."""
    tables = (table for part in parts for table in blocks(part))
    merged = write_part(folder, parts[0].first, parts[-1].last, tables, schema)
    remove(parts, merged)
    return merged


def store_step(folder: Path, step: int, table: pa.Table, schema: pa.Schema, *, replace: bool = False) -> None:
    """Write the rows of a step, which may be in a part: besides its rows there, or in their place.

    Errors: OSError.
    """
    part = next((part for part in parts_of(folder) if part.has_any(step, step)), None)
    if part is None:
        write_part(folder, step, step, [table], schema)
        return
    stored = (block.filter(pc.field("step") != step) if replace else block for block in blocks(part))
    write_part(folder, part.first, part.last, chain(stored, [table]), schema)


def blocks(part: Part) -> Iterator[pa.Table]:
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
        if path not in current and part_of(path) is not None:
            path.unlink(missing_ok=True)


def _writer(file: BinaryIO, schema: pa.Schema) -> pq.ParquetWriter:
    names = frozenset(schema.names)
    return pq.ParquetWriter(
        file,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in REPEATED if name in names],
        write_statistics=[name for name in LOOKED_UP if name in names],
    )


def _full_blocks(tables: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of some tables in tables of the schema that are full, except the last."""
    pending: list[pa.Table] = []
    for table in tables:
        pending.append(_with_all_columns(table, schema))
        full = sum(each.num_rows for each in pending) >= ROWS_OF_A_BLOCK
        if full or sum(each.nbytes for each in pending) >= BYTES_OF_A_BLOCK:
            yield pa.concat_tables(pending)
            pending = []
    if pending:
        yield pa.concat_tables(pending)


def _with_all_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    names = frozenset(table.column_names)
    columns = [
        table[field.name] if field.name in names else pa.nulls(table.num_rows, field.type) for field in schema
    ]
    return pa.table(columns, schema=schema)
