"""Queries over the stored completions of a run, in SQL, also while the run writes them."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb

from slipstream.samples.parts import parts_of
from slipstream.samples.table import SCHEMA

Row = Mapping[str, Any]
ATTEMPTS: Final = 5
"""How often a query begins again because the run has merged the parts that it was reading."""


class NoSamples(ValueError):
    """The directory has no stored completions, or none that can be read; the message says why."""


class SampleQuery:
    """Runs queries over the table `samples` of a folder; may be called from several threads.

    The table is empty without a folder. Columns that a part of an older release lacks are null.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # DuckDB reads Parquet by itself: it shall download nothing
        self._connection = duckdb.connect(config={"autoinstall_known_extensions": "false", "threads": "2"})
        self._lock = threading.Lock()

    def rows(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        """Return the rows of a query over the table `samples`. Errors: NoSamples."""
        for _ in range(ATTEMPTS):
            files = [str(part.path) for part in parts_of(self._folder)]
            try:
                return self._answer(sql, files, values)
            except duckdb.IOException as error:
                if all(Path(file).exists() for file in files):
                    raise NoSamples(f"{self._folder}: {one_line(error)}") from error
            except duckdb.Error as error:
                raise NoSamples(f"{self._folder}: {one_line(error)}") from error
        raise NoSamples(f"{self._folder}: its files change faster than they can be read; try again")

    def _answer(self, sql: str, files: Sequence[str], values: Mapping[str, Any]) -> list[Row]:
        with self._lock, self._connection.cursor() as cursor:
            cursor.register("empty", SCHEMA.empty_table())
            source, bound = "select * from empty", dict(values)
            if files:
                source += " union all by name select * from read_parquet($files, union_by_name = true)"
                bound["files"] = list(files)
            cursor.execute(f"with samples as ({source}) {sql}", bound)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def one_line(error: Exception) -> str:
    """Return the message of an error on one line."""
    return " ".join(str(error).split())
