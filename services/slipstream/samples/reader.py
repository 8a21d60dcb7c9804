"""Reads the stored completions of a run, also while the run writes them."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

import duckdb

from slipstream.samples.parts import parts_of
from slipstream.samples.table import SCHEMA, SUMMARIES, TOKEN_TYPES, TRAINED_TYPES
from slipstream.samples.vocabulary import NAME as TOKENIZER
from slipstream.samples.vocabulary import read_vocabulary, token_texts
from slipstream.samples.writer import FOLDER

Row = Mapping[str, Any]
MOST_ROWS: Final = 1000
"""Most rows of one page."""
ATTEMPTS: Final = 5
"""How often a query begins again because the run has merged the parts that it was reading."""
CONTEXT: Final = ("group", "prompt_token_ids", "segment_starts", "segment_prompts")
"""Columns that say which tokens stand before those of a completion."""
ORDERS: Final = ("step", "reward", "tokens", "staleness", "largest_ratio", "advantage", "clipped", "over_age")


class NoSamples(ValueError):
    """The directory has no stored completions, or none that can be read; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which completions a page shows; None and False leave a condition out."""

    first_step: int | None = None
    last_step: int | None = None
    state: Literal["trained", "withheld", "filtered"] | None = None
    source: str | None = None
    group: str | None = None
    least_reward: float | None = None
    largest_reward: float | None = None
    least_staleness: int | None = None
    clipped: bool = False
    """Some of its tokens met an end of the band."""
    over_age: bool = False
    """Some of its tokens were too old to train."""
    truncated: bool = False
    """It ended at the bound of its tokens."""
    text: str | None = None
    """A part of its text, prompt, answer or reason, in upper or lower case."""

    @property
    def conditions(self) -> tuple[str, dict[str, Any]]:
        """The conditions as SQL, with the values of its parameters."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        used = {name: value for name, value in values.items() if value is not None and value is not False}
        sql = " and ".join(CONDITIONS[name] for name in used) or "true"
        return sql, {name: value for name, value in used.items() if f"${name}" in sql}


CONDITIONS: Final[Mapping[str, str]] = {
    "first_step": "step >= $first_step",
    "last_step": "step <= $last_step",
    "state": "state = $state",
    "source": "source = $source",
    "group": '"group" = $group',
    "least_reward": "reward >= $least_reward",
    "largest_reward": "reward <= $largest_reward",
    "least_staleness": "staleness >= $least_staleness",
    "clipped": "clipped_low + clipped_high > 0",
    "over_age": "over_age > 0",
    "truncated": "finish_reason = 'length'",
    "text": "(contains(lower(text), lower($text)) or contains(lower(prompt), lower($text)) "
    "or contains(lower(answer), lower($text)) or contains(lower(reason), lower($text)))",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some of the completions that a filter selects."""

    total: int
    """Number of completions that the filter selects."""
    rows: Sequence[Row]
    """Columns of SUMMARIES of each completion."""


class SampleReader:
    """Queries over the stored completions of one run; may be called from several threads."""

    def __init__(self, run_dir: Path) -> None:
        """Errors: NoSamples."""
        self._folder = run_dir / FOLDER
        if not run_dir.is_dir():
            raise NoSamples(
                f"{run_dir}: there is no such directory; name the directory of a run, such as runs/latest"
            )
        if not self._folder.is_dir():
            raise NoSamples(
                f"{run_dir}: has no folder {FOLDER}; the run stores no completions (learner.samples.share), "
                "is older than this folder, or is no run"
            )
        # DuckDB reads Parquet by itself: it shall download nothing
        self._connection = duckdb.connect(config={"autoinstall_known_extensions": "false", "threads": "2"})
        self._lock = threading.Lock()
        self._vocabulary: Mapping[int, bytes] | None = None

    def steps(self) -> Sequence[Row]:
        """Return for each step its number of completions by state, with their mean reward and staleness."""
        return self._query(
            'select step, count(*) as completions, count(distinct "group") as "groups", '
            "count(*) filter (state = 'trained') as trained, "
            "count(*) filter (state = 'withheld') as withheld, "
            "count(*) filter (state = 'filtered') as filtered, "
            "avg(reward) filter (state = 'trained') as reward, "
            "avg(staleness) filter (state = 'trained') as staleness "
            "from samples group by step order by step",
            {},
        )

    def completions(
        self, where: Filter, *, order: str = "step", descending: bool = False, start: int = 0, count: int = 50
    ) -> Page:
        """Return `count` completions from `start` on.

        Errors: ValueError for an unknown order, or a start or count out of bounds.
        """
        if order not in ORDERS:
            raise ValueError(f"order: got {order!r}, needs one of {', '.join(ORDERS)}")
        if not 0 <= count <= MOST_ROWS or start < 0:
            raise ValueError(
                f"got start {start} and count {count}, needs start >= 0 and count up to {MOST_ROWS}"
            )
        sql, values = where.conditions
        by = "clipped_low + clipped_high" if order == "clipped" else order
        columns = ", ".join(f'"{name}"' for name in SUMMARIES)
        rows = self._query(
            f"select {columns} from samples where {sql} order by {by} {'desc' if descending else 'asc'} "
            f'nulls last, step, dispatch_index, "group", member limit {count} offset {start}',
            values,
        )
        (total,) = self._query(f"select count(*) as total from samples where {sql}", values)
        return Page(total=total["total"], rows=rows)

    def completion(self, step: int, group: str, member: int) -> Row | None:
        """Return all columns of one completion; None if it is not stored."""
        rows = self._query(
            'select * from samples where step = $step and "group" = $group and member = $member',
            {"step": step, "group": group, "member": member},
        )
        return rows[0] if rows else None

    def tokens_of_step(self, step: int) -> list[Row]:
        """Return what losses and models read of the completions that a step trained on, in the order of the
        batch."""
        columns = ", ".join(f'"{name}"' for name in (*CONTEXT, *TOKEN_TYPES, *TRAINED_TYPES))
        return self._query(
            f"select {columns} from samples where step = $step and state = 'trained' "
            'order by dispatch_index, "group", member',
            {"step": step},
        )

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Return the text of each token, `<id>` where the run has no spelling of its tokens.

        Errors: NoSamples for a tokenizer.json of another form.
        """
        if self._vocabulary is None:
            file = self._folder / TOKENIZER
            try:
                self._vocabulary = read_vocabulary(file) if file.exists() else {}
            except (OSError, ValueError) as error:
                raise NoSamples(_line(error)) from error
        return token_texts(token_ids, self._vocabulary)

    def _query(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        """Return the rows of a query over the table `samples`. Errors: NoSamples."""
        for _ in range(ATTEMPTS):
            files = [str(part.path) for part in parts_of(self._folder)]
            try:
                return self._answer(sql, files, values)
            except duckdb.IOException as error:
                if all(Path(file).exists() for file in files):
                    raise NoSamples(f"{self._folder}: {_line(error)}") from error
            except duckdb.Error as error:
                raise NoSamples(f"{self._folder}: {_line(error)}") from error
        raise NoSamples(f"{self._folder}: its files change faster than they can be read; try again")

    def _answer(self, sql: str, files: Sequence[str], values: Mapping[str, Any]) -> list[Row]:
        with self._lock, self._connection.cursor() as cursor:
            if files:
                source, bound = "read_parquet($files)", {**values, "files": list(files)}
            else:
                source, bound = "empty", dict(values)
                cursor.register("empty", SCHEMA.empty_table())
            cursor.execute(f"with samples as (select * from {source}) {sql}", bound)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
