"""Reads the timeline of a run: what each process did in a window of time, and the life of one group.

timeline.jsonl ────────────────▶ spans of the learner and of the rollouts ─┬▶ the window ─▶ bars to draw
columns of stored completions ─▶ phases of the groups ─────────────────────┘

Lanes: `learner`, the names of rollouts and actors, and `replay` for groups that wait to be trained on. A
group is on the timeline once its step has trained on it, or once it was filtered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slipstream.records import GroupTimes, RolloutTime, StepTimes
from slipstream.samples import database, folder, table
from slipstream.samples.timeline.spans import BUFFER, FILE, LEARNER, Phase, phases_of

CLOCKS_SECONDS: Final = 3600.0
"""More than clocks of actors may be ahead of that of the learner; rows written earlier are not read."""
FINE: Final = 1 / 2000
"""Gaps of a smaller share of the window are not shown, if spans have to be merged."""
NEAR_BARS: Final = 50_000.0
OWN: Final = (
    'select lane, what, start, "end", step, null::varchar as "group", coalesce(failed, false) as failed '
    "from read_json($timeline, format = 'newline_delimited', ignore_errors = true, columns = {lane: "
    "'varchar', what: 'varchar', start: 'double', \"end\": 'double', step: 'integer', failed: 'boolean'}) "
    "where lane is not null and what is not null"
)
"""The spans of timeline.jsonl. A line that a crash has torn is left out."""
NOTHING: Final = (
    'select null::varchar as lane, null::varchar as what, null::double as start, null::double as "end", '
    'null::integer as step, null::varchar as "group", false as failed where false'
)
GROUPS: Final = (
    'select "group", step, worker, rollouts, rollout_times, leased_at, placed_at, sampled_at, scored_at, '
    "inserted_at, taken_at, training_at from samples where member = 0 and leased_at <= $end "
    f'and "time" >= $start - {CLOCKS_SECONDS} '
    "and greatest(scored_at, inserted_at, taken_at, training_at) >= $start"
)
PHASES: Final = (
    ("worker", "'place'", "leased_at", "placed_at"),
    ("worker", "'score'", "sampled_at", "scored_at"),
    (f"'{BUFFER}'", "'buffer'", "inserted_at", "taken_at"),
    (f"'{LEARNER}'", "'queue'", "taken_at", "training_at"),
)
"""Lane, name, start and end of the phases of a group, besides sampling, as SQL."""
SAMPLING: Final = (
    "select coalesce(rollouts[i], worker) as lane, 'sample' as what, "
    "case when i = 1 then placed_at else rollout_times[i] end as start, "
    'coalesce(rollout_times[i + 1], sampled_at) as "end", step, "group" from '
    "(select *, unnest(range(1, greatest(len(rollouts), 1) + 1)) as i from groups)"
)
"""A span for each rollout that sampled a group: from its first tokens to those of the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A span, or several spans of one lane and name that overlap or nearly touch, as one bar."""

    lane: str
    what: str
    start: float
    """Seconds since 1970, also before the window."""
    end: float
    count: int
    """Number of spans; 1 for a single one."""
    seconds: float
    """Sum of the lengths of the spans: `seconds / (end - start)` are under way on average."""
    step: int | None
    """Step of a single span."""
    group: str | None
    """Group of a single span."""
    failed: bool
    """Whether a span among them has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What all processes did between two times."""

    start: float
    end: float
    spans: int
    """Number of spans that overlap the window."""
    bars: Sequence[Bar]
    """By start. Each is one span if there are at most `most`. Else spans with gaps of at most `gap_seconds`
    between them are merged, so that the bars are at most `most`, but at least one for each lane and name."""
    gap_seconds: float
    """0 if each bar is one span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLife:
    """One group from its lease to its gradient."""

    group: str
    step: int
    state: str
    """`trained`, `withheld` or `filtered`."""
    worker: str
    times: database.Row
    """The columns `leased_at` to `trained_at`; None if unknown."""
    phases: Sequence[Phase]
    """In order; empty for an actor of an older release."""


class TimelineReader:
    """Queries over the timeline of one run; may be called from several threads.

    Errors of every method: NoSamples if a file cannot be read.
    """

    def __init__(self, run_dir: Path) -> None:
        """A run directory without a timeline has no spans."""
        self._file = run_dir / FILE
        self._database = database.SampleDatabase(run_dir / folder.FOLDER, needs_part=False)

    @property
    def unreadable(self) -> list[str]:
        """The files of completions that the queries so far have left out because they cannot be read."""
        return self._database.unreadable

    def extent(self) -> tuple[float, float] | None:
        """Return the first and the last time of any span; None without spans."""
        (row,) = self._rows(
            'select min(start) as first, max("end") as last from '
            f"({self._own()} union all by name select leased_at as start, "
            'greatest(inserted_at, trained_at) as "end" from samples where leased_at is not null)',
            {},
        )
        return None if row["first"] is None else (row["first"], row["last"])

    def window(self, start: float, end: float, *, most: int = 2000) -> Window:
        """Return the bars that overlap a window, `most` or fewer.

        Errors: ValueError for bounds out of order.
        """
        if not start <= end or most < 1:
            raise ValueError(f"got the window {start} to {end} and {most} bars, needs start <= end and a bar")
        rows = self._rows(
            f"select * from ({_window_sql(self._own())}) order by start, lane, what",
            {"start": start, "end": end, "most": most},
        )
        bars = [Bar(**{name: row[name] for name in Bar.__dataclass_fields__}) for row in rows]
        spans, gap = (rows[0]["spans"], rows[0]["gap"]) if rows else (0, 0.0)
        return Window(start=start, end=end, spans=spans, bars=bars, gap_seconds=gap)

    def group(self, group: str) -> GroupLife | None:
        """Return the life of a group at its last step; None if it is not stored."""
        columns = ", ".join(("step", "state", "worker", "rollouts", "rollout_times", *table.TIMES))
        rows = self._rows(
            f'select {columns} from samples where "group" = $group order by step desc, member limit 1',
            {"group": group},
        )
        return _life(group, rows[0]) if rows else None

    def _own(self) -> str:
        return OWN if self._file.exists() else NOTHING

    def _rows(self, sql: str, values: dict[str, Any]) -> list[database.Row]:
        own = {"timeline": str(self._file)} if "$timeline" in sql else {}
        return self._database.read(lambda files: self._database.rows(files, sql, {**values, **own}))


def _window_sql(own: str) -> str:
    """Return the query of the bars of a window.

    Spans of a lane and a name that begin within `fine` seconds of one another are merged first, which leaves
    at most NEAR_BARS. Of the gaps between those, the largest stay open: with `pairs` of a lane and a name,
    the number of bars is `pairs` and one for each open gap.
    """
    phases = " union all ".join(
        f'select {lane} as lane, {what} as what, {start} as start, {end} as "end", step, "group" from groups'
        for lane, what, start, end in PHASES
    )
    order = 'partition by lane, what order by start, "end" rows between unbounded preceding and'
    return f"""
        with groups as ({GROUPS}),
        shown as (
            select lane, what, start, greatest(start, "end") as "end", step, "group", failed,
                row_number() over () as number
            from ({own} union all by name ({phases} union all {SAMPLING}))
            where start <= $end and "end" is not null and greatest(start, "end") >= $start
        ),
        size as (
            select spans, pairs, case when spans <= $most then 0.0
                else greatest(1e-6, ($end - $start) * greatest({FINE}, pairs / {NEAR_BARS})) end as fine
            from (select count(*) as spans, count(distinct (lane, what)) as pairs from shown)
        ),
        near as (
            select lane, what, min(start) as start, max("end") as "end", count(*) as count,
                sum("end" - start) as seconds, min(step) as step, min("group") as "group",
                bool_or(coalesce(failed, false)) as failed,
                any_value(spans) as spans, any_value(pairs) as pairs, any_value(fine) as fine
            from shown, size
            group by lane, what, case when fine = 0 then number else floor((start - $start) / fine) end
        ),
        gaps as (
            select *, start - max("end") over ({order} 1 preceding) as gap from near
        ),
        closed as (
            select case when any_value(fine) = 0 then 0.0
                else greatest(any_value(fine), max(gap) filter (rank > $most - pairs)) end as closed
            from (select *, row_number() over (order by gap desc nulls last) as rank from gaps)
        ),
        numbered as (
            select *, count(*) filter (gap is null or fine = 0 or gap > closed) over ({order} current row)
                as number
            from gaps, closed
        )
        select lane, what, min(start) as start, max("end") as "end", sum(count)::bigint as count,
            sum(seconds) as seconds, bool_or(failed) as failed,
            case when sum(count) = 1 then min(step) end as step,
            case when sum(count) = 1 then min("group") end as "group",
            any_value(spans) as spans, any_value(closed) as gap
        from numbered group by lane, what, number
    """


def _life(group: str, row: database.Row) -> GroupLife:
    return GroupLife(
        group=group,
        step=row["step"],
        state=row["state"],
        worker=row["worker"],
        times={name: row[name] for name in table.TIMES},
        phases=_phases(row),
    )


def _phases(row: database.Row) -> list[Phase]:
    if row["leased_at"] is None:
        return []
    moments = zip(row["rollouts"], row["rollout_times"], strict=True)
    times = GroupTimes(
        leased=row["leased_at"],
        placed=row["placed_at"],
        rollouts=tuple(RolloutTime(rollout=name, first_token=moment) for name, moment in moments),
        sampled=row["sampled_at"],
        scored=row["scored_at"],
        inserted=row["inserted_at"],
    )
    trained = row["training_at"] is not None and row["trained_at"] is not None
    step = StepTimes(training=row["training_at"], trained=row["trained_at"]) if trained else None
    return phases_of(row["worker"], times, taken=row["taken_at"], step=step)
