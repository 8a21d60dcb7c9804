"""The bars of a window, against a loop over all spans; the life of a group; parts of an older release."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.made_up import completion, group
from samples.test_writer import put, stored, writing
from slipstream.records import Group, GroupTimes, RolloutTime, StepTimes
from slipstream.rpc import codec
from slipstream.samples import writer as module
from slipstream.samples.folder import parts_of
from slipstream.samples.parts import write_part
from slipstream.samples.reader import Filter, SampleReader
from slipstream.samples.table import SCHEMA, TIMES
from slipstream.samples.timeline.reader import Bar, TimelineReader
from slipstream.samples.timeline.spans import phases_of
from slipstream.samples.writer import FilteredGroup

STEPS = 30
FIRST = 1_700_000_000.0
Simple = tuple[str, str, float, float]


def times_of(random: Random, start: float) -> GroupTimes:
    """Return times of a group that was leased at `start`, sometimes with several rollouts."""
    moments = [start]
    count = random.choice((0, 1, 1, 1, 2, 3))
    for _ in range(count + 4):
        moments.append(moments[-1] + random.choice((0.0, 0.5, 3.0)) * random.random())
    leased, placed, *firsts = moments[: 2 + count]
    names = random.choice((["r-0", "r-1", "r-0"], ["r-1", "r-2", "r-3"]))
    return GroupTimes(
        leased=leased,
        placed=placed,
        rollouts=tuple(RolloutTime(rollout=n, first_token=t) for n, t in zip(names, firsts, strict=False)),
        sampled=moments[2 + count],
        scored=moments[3 + count],
        inserted=moments[4 + count],
    )


def made_group(random: Random, name: str, start: float) -> Group:
    """Return a group of two completions; one in ten is of an older actor, which sends no times."""
    times = times_of(random, start) if random.random() < 0.9 else None
    of_two = group(name, [completion(random) for _ in range(2)])
    return replace(of_two, times=times, worker_id=random.choice(("a-0", "a-1")))


def fill(run_dir: Path) -> list[Simple]:
    """Store steps and a timeline; return all spans that the reader must know."""
    random, spans, lines = Random(1), list[Simple](), list[str]()
    with writing(run_dir) as writer:
        for step in range(1, STEPS + 1):
            start = FIRST + 4 * step
            groups = [made_group(random, f"{step}-{n}", start + random.random()) for n in range(4)]
            # the clock of the learner is behind in some steps
            taken = start + random.choice((1.0, 8.0))
            batch = [replace(each, taken=taken) for each in groups[:3]]
            times = StepTimes(training=taken + random.random(), trained=taken + 2)
            payload = codec.group_to_proto(groups[3]).SerializeToString()
            filtered = [FilteredGroup(payload=payload, reason="equal")]
            writer.put(step, batch, None, filtered=filtered, times=times)
            writer.wait()
            for each in [*batch, groups[3]]:
                if each.times is not None:
                    phases = phases_of(each.worker_id, each.times, taken=each.taken, step=times)
                    spans += [(p.lane, p.what, p.start, p.end) for p in phases if p.what != "train"]
            # the buffer and the queue do not need the times of the actor
            for lane, what, length in (
                ("learner", "train", 2.0),
                ("r-1", "pause", 0.3),
                ("r-1", "join", 0.0),
            ):
                row = {"lane": lane, "what": what, "start": taken, "end": taken + length, "step": step}
                lines.append(json.dumps(row))
                spans.append((lane, what, taken, taken + length))
    torn = '{"lane": "learner", "what": "tr'
    (run_dir / "timeline.jsonl").write_text("\n".join([*lines[:20], "", torn, *lines[20:], torn]))
    return spans


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def spans(run_dir: Path) -> list[Simple]:
    return fill(run_dir)


def merged(spans: Sequence[Simple], start: float, end: float, gap: float) -> dict[Simple, tuple[int, float]]:
    """Return the number and the summed seconds of the spans of each bar, by a loop."""
    by_lane = defaultdict(list)
    for lane, what, first, last in spans:
        if first <= end and last >= start:
            by_lane[lane, what].append((first, last))
    bars: dict[Simple, tuple[int, float]] = {}
    for (lane, what), of_lane in by_lane.items():
        rows: list[list[tuple[float, float]]] = []
        reached = -1e99
        for first, last in sorted(of_lane):
            if first > reached + gap:
                rows.append([])
            rows[-1].append((first, last))
            reached = max(reached, last)
        for row in rows:
            bar = (lane, what, row[0][0], max(last for _, last in row))
            bars[bar] = (len(row), sum(last - first for first, last in row))
    return bars


def of(bar: Bar) -> Simple:
    return (bar.lane, bar.what, bar.start, bar.end)


@settings(max_examples=60, deadline=None)
@given(start=st.floats(-5, 140), length=st.floats(0, 150), most=st.integers(1, 900))
def test_the_bars_of_a_window_are_those_of_a_loop_over_all_spans(
    run_dir: Path, spans: list[Simple], start: float, length: float, most: int
) -> None:
    start += FIRST
    window = TimelineReader(run_dir).window(start, start + length, most=most)
    shown = [span for span in spans if span[2] <= start + length and span[3] >= start]
    pairs = {span[:2] for span in shown}
    assert window.spans == len(shown)
    assert sum(bar.count for bar in window.bars) == len(shown)
    if len(shown) <= most:
        assert sorted(map(of, window.bars)) == sorted(shown)
        assert window.gap_seconds == 0
        return
    assert len(window.bars) <= max(most, len(pairs))
    expected = merged(spans, start, start + length, window.gap_seconds + 1e-9)
    assert {of(bar): bar.count for bar in window.bars} == {bar: count for bar, (count, _) in expected.items()}
    for bar in window.bars:
        assert bar.seconds == pytest.approx(expected[of(bar)][1], abs=1e-4)


def test_a_window_with_few_bars_keeps_the_largest_gaps(tmp_path: Path) -> None:
    starts = [0, 1, 2, 50, 51, 90]
    rows = [{"lane": "r", "what": "pause", "start": s, "end": s + 0.5, "step": s} for s in starts]
    (tmp_path / "timeline.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    window = TimelineReader(tmp_path).window(0, 100, most=3)
    assert [(bar.start, bar.end, bar.count, bar.step) for bar in window.bars] == [
        (0, 2.5, 3, None),
        (50, 51.5, 2, None),
        (90, 90.5, 1, 90),
    ]
    assert window.gap_seconds == 0.5


def test_a_failed_span_shows_in_its_bar(tmp_path: Path) -> None:
    rows = [{"lane": "r", "what": "pause", "start": n, "end": n + 1, "failed": n == 3} for n in range(9)]
    (tmp_path / "timeline.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [bar.failed for bar in TimelineReader(tmp_path).window(0, 9, most=1).bars] == [True]
    assert [bar.failed for bar in TimelineReader(tmp_path).window(4.5, 9, most=1).bars] == [False]


def test_a_run_without_a_timeline_has_no_spans(tmp_path: Path) -> None:
    reader = TimelineReader(tmp_path)
    assert reader.extent() is None
    assert reader.window(0, 1).bars == []
    assert reader.group("g") is None
    with pytest.raises(ValueError, match="needs start <= end"):
        reader.window(2, 1)


def test_the_extent_is_from_the_first_lease_to_the_last_span(run_dir: Path, spans: list[Simple]) -> None:
    assert TimelineReader(run_dir).extent() == (min(s[2] for s in spans), max(s[3] for s in spans))


def test_the_life_of_a_group_is_its_phases_in_order(run_dir: Path, spans: list[Simple]) -> None:
    reader = TimelineReader(run_dir)
    for step in range(1, STEPS + 1):
        life = reader.group(f"{step}-0")
        assert life is not None
        assert (life.step, life.state) == (step, "trained")
        assert tuple(life.times) == TIMES
        if life.times["leased_at"] is None:
            assert life.phases == []
            continue
        own = [(p.lane, p.what, p.start, p.end) for p in life.phases]
        assert set(own[:-1]) <= set(spans)
        assert [what for _, what, *_ in own if what != "sample"] == [
            "place",
            "score",
            "buffer",
            "queue",
            "train",
        ]
        sampling = [phase for phase in life.phases if phase.what == "sample"]
        assert sampling[0].start == life.times["placed_at"]
        assert sampling[-1].end == life.times["sampled_at"]
        assert all(before.end == after.start for before, after in pairwise(sampling))
    filtered = reader.group("1-3")
    assert filtered is not None
    assert filtered.state == "filtered"
    assert filtered.times["taken_at"] is filtered.times["trained_at"] is None


def without_times(table: pa.Table) -> pa.Table:
    """Return a table in the form of the release before this one."""
    return table.drop_columns([*TIMES, "rollouts", "rollout_times"])


def age(run_dir: Path) -> None:
    """Bring all parts of a run into the form of the release before this one."""
    for part in parts_of(run_dir / "samples"):
        table = without_times(pq.read_table(part.path))
        write_part(part.path.parent, part.first, part.last, [table], table.schema)


def test_parts_of_an_older_release_are_read_alone_and_beside_newer_ones(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        put(writer, 1)
    age(tmp_path)
    (row,) = SampleReader(tmp_path).completions(Filter()).rows
    assert [row[name] for name in TIMES] == [None] * len(TIMES)
    life = TimelineReader(tmp_path).group("1-0")
    assert life is not None
    assert life.phases == []
    with writing(tmp_path, version=1) as writer:
        times = times_of(Random(1), FIRST)
        writer.put(2, [replace(group("2-0", [completion(Random(2))]), times=times)], None)
    old, new = SampleReader(tmp_path).completions(Filter()).rows
    assert (old["step"], old["leased_at"]) == (1, None)
    assert (new["step"], new["leased_at"]) == (2, times.leased)
    assert (old["text"], old["group"]) == ("an answer", "1-0")
    assert TimelineReader(tmp_path).window(FIRST, FIRST + 99).spans >= 3


def test_a_resumed_run_goes_on_with_parts_of_an_older_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MERGED_PARTS", 3)
    with writing(tmp_path) as writer:
        for step in range(1, 6):
            put(writer, step)
    age(tmp_path)
    with writing(tmp_path, version=2) as writer:  # cuts the merged part of the steps 1 to 3
        for step in range(3, 9):
            put(writer, step)
    assert [step for step, _ in stored(tmp_path)] == list(range(1, 9))
    for part in parts_of(tmp_path / "samples"):
        assert pq.read_schema(part.path).equals(SCHEMA)


def test_the_times_of_filtered_and_trained_groups_are_in_their_columns(tmp_path: Path) -> None:
    random = Random(3)
    times = times_of(random, FIRST)
    trained = replace(group("t", [completion(random)]), times=times, taken=FIRST + 20)
    payload = codec.group_to_proto(replace(group("f", [completion(random)]), times=times)).SerializeToString()
    with writing(tmp_path) as writer:
        filtered = [FilteredGroup(payload=payload, reason="equal")]
        step = StepTimes(training=FIRST + 21, trained=FIRST + 22)
        writer.put(1, [trained], None, filtered=filtered, times=step)
    rows: dict[str, dict[str, Any]] = {
        row["group"]: row
        for row in pq.read_table(tmp_path / "samples" / "000000001-000000001.parquet").to_pylist()
    }
    for name, ends in (("t", [FIRST + 20, FIRST + 21, FIRST + 22]), ("f", [None] * 3)):
        row = rows[name]
        assert [row[column] for column in TIMES] == [
            *(times.leased, times.placed, times.first_token, times.sampled, times.scored, times.inserted),
            *ends,
        ]
        assert row["rollouts"] == [each.rollout for each in times.rollouts]
        assert row["rollout_times"] == [each.first_token for each in times.rollouts]
