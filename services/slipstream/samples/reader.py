"""Reads the stored completions of a run, also while the run writes them.

A page takes two queries. The first reads only the columns of the filter and of the order, counts what the
filter selects, and returns the places of the rows of the page: file, and number in the file. The second reads
all other columns of these rows alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, get_args

from slipstream.samples import folder, table, vocabulary
from slipstream.samples.database import PLACE, NoSamples, PartsChanged, Row, SampleDatabase, one_line, quoted
from slipstream.samples.vocabulary import NAME as TOKENIZER

__all__ = ["ORDERS", "Filter", "NoSamples", "Page", "Row", "SampleReader"]

MOST_ROWS: Final = 1000
"""Most rows of one page."""
CONTEXT: Final = ("group", "prompt_token_ids", "segment_starts", "segment_prompts")
"""Columns that say which tokens stand before those of a completion."""
ORDERS: Final = ("step", "reward", "tokens", "staleness", "largest_ratio", "advantage", "clipped", "over_age")
IDENTITY: Final = ("step", "group", "member")
"""Columns that name a completion."""


State = Literal["trained", "withheld", "filtered", "dropped", "evaluation"]
STATES: Final[tuple[State, ...]] = get_args(State)
SAMPLED: Final = "filter (state <> 'evaluation')"
"""Completions that were sampled for training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which completions a page shows; None and False leave a condition out."""

    first_step: int | None = None
    last_step: int | None = None
    state: State | None = None
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
    """Columns of SUMMARIES of each completion, and `rewards`: the values of its components by their names."""


class SampleReader:
    """Queries over the stored completions of one run; may be called from several threads."""

    def __init__(self, run_dir: Path) -> None:
        """Errors: NoSamples."""
        self._folder = run_dir / folder.FOLDER
        if not run_dir.is_dir():
            raise NoSamples(
                f"{run_dir}: there is no such directory; name the directory of a run, such as runs/latest"
            )
        if not self._folder.is_dir():
            raise NoSamples(
                f"{run_dir}: has no folder {folder.FOLDER}; "
                "the run stores no completions (learner.samples.share), "
                "is older than this folder, or is no run"
            )
        self._database = SampleDatabase(self._folder)
        self._vocabulary: Mapping[int, bytes] | None = None

    @property
    def unreadable(self) -> list[str]:
        """The files that the queries so far have left out because they cannot be read."""
        return self._database.unreadable

    def steps(self) -> Sequence[Row]:
        """Return for each step its number of completions by state, and the mean reward and staleness of the
        trained ones. Evaluations count in the column `evaluation` alone."""
        states = ", ".join(f"count(*) filter (state = '{state}') as {state}" for state in STATES)
        return self._rows(
            f'select step, count(*) {SAMPLED} as completions, count(distinct "group") {SAMPLED} as "groups", '
            f"{states}, "
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
        _check_order(order)
        if not 0 <= count <= MOST_ROWS or start < 0:
            raise ValueError(
                f"got start {start} and count {count}, needs start >= 0 and count up to {MOST_ROWS}"
            )
        sql, values = _page_sql(where, order, descending=descending, start=start, count=count)

        def reading(files: Sequence[str]) -> Page:
            places = self._database.rows(files, sql, values)
            named = [row for row in places if row["filename"] is not None]
            rows = [_with_values(row) for row in self._at(named, (*table.SUMMARIES, "rewards"))]
            return Page(total=places[0]["total"], rows=rows)

        return self._database.read(reading, first=where.first_step, last=where.last_step)

    def stream(self, where: Filter, *, order: str, descending: bool, most: int) -> Iterator[Row]:
        """Return the columns of SUMMARIES of the completions that a filter selects, the first `most` of them.

        They are those of one moment, also while the run goes on. Errors: NoSamples, ValueError.
        """
        _check_order(order)
        condition, values = where.conditions
        sql = (
            f"select {quoted(table.SUMMARIES)} from samples where {condition} "
            f"order by {_sorting(_by(order), descending=descending)} limit {most}"
        )

        def reading(files: Sequence[str]) -> Iterator[Row]:
            batches = self._database.batches(files, sql, values)
            first = next(batches, [])
            return chain(first, chain.from_iterable(batches))

        return self._database.read(reading, first=where.first_step, last=where.last_step)

    def write_parquet(self, where: Filter, target: Path, *, most: int) -> None:
        """Write all columns of the completions that a filter selects to a file, the first `most` of them.

        Errors: NoSamples, OSError.
        """
        condition, values = where.conditions
        sql = f"select {quoted(table.SCHEMA.names)} from samples where {condition} order by step limit {most}"
        self._database.read(
            lambda files: self._database.write_parquet(files, sql, values, target),
            first=where.first_step,
            last=where.last_step,
        )

    def completion(self, step: int, group: str, member: int) -> Row | None:
        """Return all columns of one completion; None if it is not stored."""
        rows = self.named([(step, group, member)])
        return rows[0] if rows else None

    def named(self, names: Sequence[tuple[int, str, int]]) -> list[Row]:
        """Return all columns of completions, in the order of their names: step, group, member.

        Names that are not stored are left out. One call takes two queries, however many names it has.
        """
        if not names:
            return []
        steps, groups, members = map(list, zip(*names, strict=True))
        sql = (
            f"select {quoted((*PLACE, *IDENTITY))} from samples where step in (select unnest($steps)) "
            'and "group" in (select unnest($groups)) and member in (select unnest($members))'
        )
        values = {"steps": steps, "groups": groups, "members": members}

        def reading(files: Sequence[str]) -> list[Row]:
            places = {_name(row): row for row in self._database.rows(files, sql, values)}
            return self._at([places[name] for name in names if name in places], table.SCHEMA.names)

        return self._database.read(reading, first=min(steps), last=max(steps))

    def tokens_of_step(self, step: int) -> list[Row]:
        """Return what losses and models read of the completions that a step trained on, in the order of the
        batch."""
        columns = quoted((*CONTEXT, *table.TOKEN_TYPES, *table.TRAINED_TYPES))
        return self._rows(
            f"select {columns} from samples where step = $step and state = 'trained' "
            'order by dispatch_index, "group", member',
            {"step": step},
            step=step,
        )

    def trained_at(self, step: int) -> list[float]:
        """Return when the completions that a step trained on were stored, in seconds since 1970."""
        sql = "select \"time\" from samples where step = $step and state = 'trained'"
        return [row["time"] for row in self._rows(sql, {"step": step}, step=step)]

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Return the text of each token, `<id>` where the run has no spelling of its tokens.

        Errors: NoSamples for a tokenizer.json of another form.
        """
        if self._vocabulary is None:
            file = self._folder / TOKENIZER
            try:
                self._vocabulary = vocabulary.read_vocabulary(file) if file.exists() else {}
            except (OSError, ValueError, RecursionError) as error:
                raise NoSamples(f"{file}: {one_line(error)}") from error
        return vocabulary.token_texts(token_ids, self._vocabulary)

    def _rows(self, sql: str, values: Mapping[str, Any], *, step: int | None = None) -> list[Row]:
        """Return the rows of a query over all completions, or those of one step. Errors: NoSamples."""
        return self._database.read(
            lambda files: self._database.rows(files, sql, values), first=step, last=step
        )

    def _at(self, places: Sequence[Row], columns: Sequence[str]) -> list[Row]:
        """Return columns of the rows at some places, in order.

        Errors: PartsChanged if other completions are there by now.
        """
        wanted = dict.fromkeys((*columns, *PLACE))
        rows = self._database.rows_at([_place(place) for place in places], list(wanted))
        by_place = {_place(row): row for row in rows}
        ordered = [by_place.get(_place(place)) for place in places]
        for place, row in zip(places, ordered, strict=True):
            if row is None or any(row[name] != place[name] for name in IDENTITY):
                raise PartsChanged
        return [{name: row[name] for name in columns} for row in ordered if row is not None]


def _page_sql(
    where: Filter, order: str, *, descending: bool, start: int, count: int
) -> tuple[str, dict[str, Any]]:
    """Return a query for the number of completions, in each row, and for place and name of those of a page.

    A page without completions has one row, whose place is null.
    """
    condition, values = where.conditions
    by = _by(order)
    names = quoted((*PLACE, *IDENTITY, "dispatch_index"))
    sorting = _sorting("sorted", descending=descending)
    return (
        f", selected as materialized (select {names}, {by} as sorted from samples where {condition}), "
        f"page as (select * from selected order by {sorting} limit {count} offset {start}) "
        f"select total, page.* from (select count(*) as total from selected) left join page on true "
        f"order by {sorting}",
        values,
    )


def _check_order(order: str) -> None:
    if order not in ORDERS:
        raise ValueError(f"order: got {order!r}, needs one of {', '.join(ORDERS)}")


def _by(order: str) -> str:
    return "clipped_low + clipped_high" if order == "clipped" else order


def _sorting(by: str, *, descending: bool) -> str:
    return f'{by} {"desc" if descending else "asc"} nulls last, step, dispatch_index, "group", member'


def _with_values(row: Row) -> Row:
    """Return a row with the values of its rewards alone: details and answers may be long texts."""
    return {**row, "rewards": {each["name"]: each["value"] for each in row["rewards"] or ()}}


def _name(row: Row) -> tuple[int, str, int]:
    return row["step"], row["group"], row["member"]


def _place(row: Row) -> tuple[str, int]:
    return row["filename"], row["file_row_number"]
