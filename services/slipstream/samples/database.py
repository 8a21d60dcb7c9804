"""SQL over the stored completions of a run, also while the run writes and merges them."""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
DAMAGED: Final = "the data are cut or damaged, or another program wrote them"
NOT_OF_A_FILE: Final = (duckdb.BinderException, duckdb.CatalogException, duckdb.OutOfMemoryException)
"""Errors that no damaged file causes."""
MOST_FOOTERS: Final = 1000
"""Files whose footers DuckDB keeps, of about 0.1 MB each, before it begins anew."""


class NoSamples(ValueError):
    """The directory has no stored completions, or none that can be read; the message says why."""


class PartsChanged(Exception):
    """A part has other rows than a moment ago."""


class SampleDatabase:
    """Answers SQL over the table `samples`, which has the rows of some parts. Several threads may call it.

    Columns that the parts of an earlier version lack are null.
    """

    def __init__(self, folder: Path, *, needs_part: bool = True) -> None:
        """`needs_part`: whether there is no answer if none of the files can be read."""
        self._folder = folder
        self._needs_part = needs_part
        self._unreadable: dict[str, _Version] = {}

    @property
    def unreadable(self) -> list[str]:
        """The files that queries have left out because they cannot be read, below the folder."""
        left_out = [Path(file) for file in list(self._unreadable) if self._is_left_out(file)]
        return sorted(str(file.relative_to(self._folder)) for file in left_out)

    def read(
        self, reading: Callable[[Sequence[str]], T], *, first: int | None = None, last: int | None = None
    ) -> T:
        """Return the result of `reading` the files with the steps from `first` to `last`; None is no bound.

        Files that cannot be read are left out. `reading` is called again when the run has merged or removed
        the files meanwhile. Errors: NoSamples.
        """
        for attempt in range(ATTEMPTS):
            time.sleep(attempt * PAUSE_SECONDS)
            files = self._files(first, last)
            try:
                return reading(files)
            except PartsChanged:
                continue
            except duckdb.Error as error:
                is_changed = isinstance(error, duckdb.IOException) and not all(map(os.path.exists, files))
                if not is_changed and not self._leave_out(files, error):
                    raise NoSamples(f"{self._folder}: {one_line(error)}") from error
        raise NoSamples(f"{self._folder}: its files change faster than they can be read; try again")

    def _files(self, first: int | None, last: int | None) -> list[str]:
        """Return the files with some steps that can be read. Errors: NoSamples if there are only others."""
        files = [str(part.path) for part in stored_parts(self._folder) if part.has_any(first, last)]
        readable = [file for file in files if not self._is_left_out(file)]
        if files and not readable and self._needs_part:
            raise NoSamples(f"{self._folder}: {', '.join(self.unreadable)} cannot be read: {DAMAGED}")
        return readable

    def _leave_out(self, files: Sequence[str], error: duckdb.Error) -> bool:
        """Leave out the files that are no Parquet, or else those with damaged data below a sound footer.

        Return whether there are any. `error`: that of a query over all of them.
        """
        left_out = {file: version for file in files if (version := _version_of_cut(file)) is not None}
        if not left_out and not isinstance(error, NOT_OF_A_FILE):
            left_out = {file: version for file in files if (version := self._version_of_damaged(file))}
        self._unreadable.update(left_out)
        return bool(left_out)

    def _version_of_damaged(self, file: str) -> "_Version | None":
        """Return the version of a file of which some value of some column cannot be read; None for any other.

        Reads all of the file: DuckDB's own message often names no file.
        """
        version = _version(file)
        try:
            self._rows([file], "select bit_xor(hash(part)) from read_parquet($file) part", {"file": file})
        except (duckdb.Error, NoSamples):
            return version if version == _version(file) else None
        return None

    def _is_left_out(self, file: str) -> bool:
        """Return whether a file cannot be read, and has not changed since that was noticed."""
        return file in self._unreadable and self._unreadable[file] == _version(file)

    def rows(self, files: Sequence[str], sql: str, values: Mapping[str, Any]) -> list[Row]:
        """Return the rows of a query over the table `samples`. `sql` continues a list of `with`."""
        return self._rows(files, *_over_files(files, sql, values))

    def batches(self, files: Sequence[str], sql: str, values: Mapping[str, Any]) -> Iterator[list[Row]]:
        """Answer a query, and yield its rows some at a time; the answer is complete before the first."""
        with _DATABASE.cursor(files) as cursor:
            with self._bounded(cursor):
                cursor.execute(*_over_files(files, sql, values))
            names = [column[0] for column in cursor.description or ()]
            while rows := self._next(cursor):
                yield [dict(zip(names, row, strict=True)) for row in rows]

    def _next(self, cursor: duckdb.DuckDBPyConnection) -> list[tuple[Any, ...]]:
        with self._bounded(cursor):
            return cursor.fetchmany(ROWS_OF_A_BATCH)

    def write_parquet(self, files: Sequence[str], sql: str, values: Mapping[str, Any], target: Path) -> None:
        """Write the rows of a query over the table `samples` to a file. Errors: OSError."""
        with _DATABASE.cursor(files) as cursor, self._bounded(cursor):
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
        sql = f"with samples as ({samples}) select {quoted(columns)} from samples"
        return self._rows(list(numbers), sql, files)

    def _rows(self, files: Sequence[str], sql: str, values: Mapping[str, Any]) -> list[Row]:
        with _DATABASE.cursor(files) as cursor, self._bounded(cursor):
            cursor.execute(sql, dict(values))
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    @contextmanager
    def _bounded(self, cursor: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """End what a cursor computes after QUERY_SECONDS. Errors: NoSamples."""
        timer = threading.Timer(QUERY_SECONDS, cursor.interrupt)
        timer.start()
        try:
            yield
        except duckdb.InterruptException as error:
            raise NoSamples(f"{self._folder}: the query took more than {QUERY_SECONDS:g} s") from error
        finally:
            timer.cancel()


class _Database:
    """The database of this process: all queries share its threads and its bound of memory.

    It keeps the footers of the files that it has read, also of those that are gone, until it begins anew.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._files: set[str] = set()
        self._largest = 0
        self._number = 0

    @contextmanager
    def cursor(self, files: Sequence[str]) -> Iterator[duckdb.DuckDBPyConnection]:
        """Give a cursor for a query over some files."""
        with self._lock:
            cursor = self._opened(files).cursor()
        with cursor:
            yield cursor

    def _opened(self, files: Sequence[str]) -> duckdb.DuckDBPyConnection:
        self._files.update(files)
        self._largest = max(self._largest, len(files))
        if self._connection is None or len(self._files) > max(MOST_FOOTERS, 2 * self._largest):
            self._number += 1
            # the database before this one ends with the last of its cursors
            self._connection, self._files = _connect(self._number), set(files)
        return self._connection


_DATABASE: Final = _Database()


def _connect(number: int) -> duckdb.DuckDBPyConnection:
    """Return a new database in memory; `number` is another one for each of this process."""
    spilled = Path(tempfile.gettempdir()) / f"slipstream-samples-{os.getpid()}-{number}"
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


_Version = tuple[int, int]
"""Size and time of change of a file."""


def _version(file: str) -> _Version | None:
    """Return the version of a file; None if it is gone."""
    try:
        state = os.stat(file)
    except OSError:
        return None
    return state.st_size, state.st_mtime_ns


def _version_of_cut(file: str) -> _Version | None:
    """Return the version of a file without a footer of Parquet; None for any other file."""
    version = _version(file)
    try:
        pq.read_metadata(file)
    except pa.ArrowException:
        return version if version == _version(file) else None
    except OSError:
        return None
    return None


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
    """Return the message of an error on one line, without the query that DuckDB adds."""
    return " ".join(str(error).partition("\nLINE ")[0].split())
