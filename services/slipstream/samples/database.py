"""SQL over the stored completions of a run, also while the run writes and merges them."""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from slipstream.processes.cores import usable_cores
from slipstream.samples.folder import stored_parts
from slipstream.samples.table import SCHEMA

Row = Mapping[str, Any]
T = TypeVar("T")
ATTEMPTS: Final = 20
"""How often a query begins again because the run has changed the parts that it was reading."""
ROWS_OF_A_BATCH: Final = 1024
QUERY_SECONDS: Final = 60.0
MOST_THREADS: Final = 4
MEMORY: Final = "1GiB"
"""Most memory of all queries at a time; a larger sort goes on in files of the temporary directory."""
PAUSE_SECONDS: Final = 0.005
"""Pause before the second attempt; it grows by as much with each further one."""
PLACE: Final = ("filename", "file_row_number")
"""Columns of the table `samples` besides those of SCHEMA: file of a row, and its number there."""


class NoSamples(ValueError):
    """The directory has no stored completions, or none that can be read; the message says why."""


class PartsChanged(Exception):
    """A part has other rows than a moment ago."""


class SampleDatabase:
    """Answers SQL over the table `samples`, which has the rows of some parts. Several threads may call it.

    Columns that the parts of an earlier version lack are null.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(
        self, reading: Callable[[Sequence[str]], T], *, first: int | None = None, last: int | None = None
    ) -> T:
        """Return the result of `reading` the files with the steps from `first` to `last`; None is no bound.

        `reading` is called again when the run has merged or removed the files meanwhile. Errors: NoSamples.
        """
        for attempt in range(ATTEMPTS):
            time.sleep(attempt * PAUSE_SECONDS)
            files = [str(part.path) for part in stored_parts(self._folder) if part.has_any(first, last)]
            try:
                return reading(files)
            except PartsChanged:
                continue
            except duckdb.IOException as error:
                if all(Path(file).exists() for file in files):
                    raise NoSamples(f"{self._folder}: {one_line(error)}") from error
            except duckdb.Error as error:
                raise NoSamples(f"{self._folder}: {one_line(error)}") from error
        raise NoSamples(f"{self._folder}: its files change faster than they can be read; try again")

    def rows(self, files: Sequence[str], sql: str, values: Mapping[str, Any]) -> list[Row]:
        """Return the rows of a query over the table `samples`. `sql` continues a list of `with`."""
        return self._rows(*_over_files(files, sql, values))

    def batches(self, files: Sequence[str], sql: str, values: Mapping[str, Any]) -> Iterator[list[Row]]:
        """Answer a query, and yield its rows some at a time; the answer is complete before the first."""
        with self._cursor() as cursor:
            cursor.execute(*_over_files(files, sql, values))
            names = [column[0] for column in cursor.description or ()]
            while rows := cursor.fetchmany(ROWS_OF_A_BATCH):
                yield [dict(zip(names, row, strict=True)) for row in rows]

    def write_parquet(self, files: Sequence[str], sql: str, values: Mapping[str, Any], target: Path) -> None:
        """Write the rows of a query over the table `samples` to a file. Errors: OSError."""
        with self._cursor() as cursor:
            query, bound = _over_files(files, sql, values)
            batches: pa.RecordBatchReader = cursor.sql(query, params=bound).to_arrow_reader(ROWS_OF_A_BATCH)
            with pq.ParquetWriter(target, batches.schema, compression="zstd") as writer:
                for batch in batches:
                    writer.write_batch(batch)

    def rows_at(self, places: Sequence[tuple[str, int]], columns: Sequence[str]) -> list[Row]:
        """Return some columns of the rows at these places, in any order."""
        numbers: dict[str, list[int]] = {}
        for file, number in places:
            numbers.setdefault(file, []).append(number)
        sources = [
            f"select * from read_parquet($file{index}, {_PLACES}) "
            f"where file_row_number in ({', '.join(map(str, of_file))})"
            for index, of_file in enumerate(numbers.values())
        ]
        samples = " union all by name ".join([*sources, _EMPTY])
        files = {f"file{index}": file for index, file in enumerate(numbers)}
        return self._rows(f"with samples as ({samples}) select {quoted(columns)} from samples", files)

    def _rows(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        with self._cursor() as cursor:
            cursor.execute(sql, dict(values))
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    @contextmanager
    def _cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Give a cursor whose query ends after QUERY_SECONDS. Errors: NoSamples."""
        with _LOCK:
            cursor = _database().cursor()
        timer = threading.Timer(QUERY_SECONDS, cursor.interrupt)
        timer.start()
        try:
            with cursor:
                yield cursor
        except duckdb.InterruptException as error:
            raise NoSamples(f"{self._folder}: the query took more than {QUERY_SECONDS:g} s") from error
        finally:
            timer.cancel()


_LOCK: Final = threading.Lock()


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """Return the database of this process: all queries share its threads and its bound of memory."""
    spilled = Path(tempfile.gettempdir()) / f"slipstream-samples-{os.getpid()}"
    # DuckDB reads Parquet by itself: it shall download nothing
    config: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": "false",
        "memory_limit": MEMORY,
        "parquet_metadata_cache": "true",
        "temp_directory": str(spilled),
        "threads": str(min(usable_cores(), MOST_THREADS)),
    }
    connection = duckdb.connect(config=config)
    connection.register("nothing", SCHEMA.empty_table())
    connection.execute("create table empty as from nothing")
    return connection


def _over_files(files: Sequence[str], sql: str, values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a query over the table `samples` of some files, with the values of its parameters."""
    if not files:
        return f"with samples as ({_EMPTY}) {sql}", dict(values)
    source = f"select * from read_parquet($files, union_by_name=true, {_PLACES})"
    return f"with samples as ({source} union all by name {_EMPTY}) {sql}", {**values, "files": list(files)}


_PLACES: Final = "filename=true, file_row_number=true"
_EMPTY: Final = "select *, '' as filename, 0::bigint as file_row_number from empty"


def quoted(columns: Sequence[str]) -> str:
    """Return the names of columns as SQL."""
    return ", ".join(f'"{name}"' for name in columns)


def one_line(error: Exception) -> str:
    """Return the message of an error on one line."""
    return " ".join(str(error).split())
