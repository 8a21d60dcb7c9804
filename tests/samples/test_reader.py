"""Pages, filters and errors of the stored completions; a run that writes while it is read."""

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.made_up import completion, group, values_of
from samples.test_writer import put, writing
from slipstream.rpc import codec
from slipstream.samples import database
from slipstream.samples import writer as module
from slipstream.samples.database import SampleDatabase
from slipstream.samples.folder import FOLDER, parts_of
from slipstream.samples.parts import blocks, merge, write_part
from slipstream.samples.reader import ORDERS, STATES, Filter, NoSamples, SampleReader
from slipstream.samples.table import SCHEMA, StoredGroup, make_table, trained_groups
from slipstream.samples.writer import FilteredGroup

STEPS = 12
EVALUATED = 4
"""Every so many steps, the version is evaluated."""


def fill(run_dir: Path) -> list[dict[str, Any]]:
    """Store some steps, and return their rows."""
    rows: list[dict[str, Any]] = []
    with writing(run_dir) as writer:
        for step in range(1, STEPS + 1):
            random = Random(step)
            words = ["Ünder the sea", "100% <b>bold</b>", "it's"]
            groups = [
                group(
                    f"{step}-{n}",
                    [
                        completion(random, failed=random.random() < 0.2, words=random.choice(words))
                        for _ in range(2)
                    ],
                    source=random.choice(["maths", "code"]),
                )
                for n in range(3)
            ]
            stored = [
                *trained_groups(groups[:2]),
                StoredGroup(group=groups[2], state="filtered", reason="equal"),
            ]
            sizes = [0 if c.withheld else c.sampled for g in groups[:2] for c in g.completions]
            values = values_of(random, sizes)
            filtered = FilteredGroup(
                payload=codec.group_to_proto(groups[2]).SerializeToString(), reason="equal"
            )
            writer.put(step, groups[:2], values, filtered=[filtered])
            writer.wait()
            rows += make_table(step, stored, values, weights={"exact_match": 1.0}, time=0.0).to_pylist()
            if step % EVALUATED == 0:
                held_out = group(f"e{step}", [completion(random, words=words[0])], source="maths")
                writer.put_evaluation(step, [codec.group_to_proto(held_out).SerializeToString()])
                evaluated = [StoredGroup(group=held_out, state="evaluation")]
                rows += make_table(step, evaluated, None, weights={"exact_match": 1.0}, time=0.0).to_pylist()
    return rows


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def rows(run_dir: Path) -> list[dict[str, Any]]:
    return fill(run_dir)


def selected(rows: Sequence[dict[str, Any]], where: Filter) -> list[dict[str, Any]]:
    """Return the rows that a filter selects, by a loop over plain values."""

    def fits(row: dict[str, Any]) -> bool:
        searched = " ".join((row["text"], row["prompt"], row["answer"], row["reason"])).lower()
        clipped = (row["clipped_low"] or 0) + (row["clipped_high"] or 0)
        return all(
            (
                where.first_step is None or row["step"] >= where.first_step,
                where.last_step is None or row["step"] <= where.last_step,
                where.state in (None, row["state"]),
                where.source in (None, row["source"]),
                where.group in (None, row["group"]),
                where.least_reward is None or (row["reward"] or -1) >= where.least_reward,
                where.largest_reward is None
                or (row["reward"] is not None and row["reward"] <= where.largest_reward),
                where.least_staleness is None or row["staleness"] >= where.least_staleness,
                not where.clipped or clipped > 0,
                not where.over_age or (row["over_age"] or 0) > 0,
                not where.truncated or row["finish_reason"] == "length",
                where.text is None or where.text.lower() in searched,
            )
        )

    return [row for row in rows if fits(row)]


FILTERS = st.builds(
    Filter,
    first_step=st.none() | st.integers(0, STEPS),
    last_step=st.none() | st.integers(0, STEPS),
    state=st.sampled_from([None, *STATES]),
    source=st.sampled_from([None, "maths", "code", "none"]),
    group=st.sampled_from([None, None, "3-1", "it's"]),
    least_reward=st.none() | st.floats(0, 1),
    largest_reward=st.none() | st.floats(0, 1),
    least_staleness=st.none() | st.integers(0, 9),
    clipped=st.booleans(),
    over_age=st.booleans(),
    truncated=st.sampled_from([False, False, True]),
    text=st.sampled_from([None, "ÜNDER", "100%", "it's", "%", "_", "2+2", "verifier", "EQUAL", "absent"]),
)


@settings(max_examples=150, deadline=None)
@given(where=FILTERS, order=st.sampled_from(ORDERS), descending=st.booleans(), start=st.integers(0, 9))
def test_a_page_is_what_a_loop_over_all_rows_selects(
    run_dir: Path, rows: list[dict[str, Any]], where: Filter, order: str, descending: bool, start: int
) -> None:
    page = SampleReader(run_dir).completions(where, order=order, descending=descending, start=start, count=5)
    expected = selected(rows, where)
    assert page.total == len(expected)
    names = [(row["group"], row["member"]) for row in page.rows]
    assert len(set(names)) == len(names) == max(0, min(5, len(expected) - start))
    assert set(names) <= {(row["group"], row["member"]) for row in expected}
    if order != "clipped":
        values = [row[order] for row in page.rows if row[order] is not None]
        assert values == sorted(values, reverse=descending)


def test_pages_together_have_every_completion_once(run_dir: Path, rows: list[dict[str, Any]]) -> None:
    reader = SampleReader(run_dir)
    pages = [
        reader.completions(Filter(), order="reward", start=start, count=7).rows for start in range(0, 80, 7)
    ]
    names = [(row["group"], row["member"]) for page in pages for row in page]
    assert sorted(names) == sorted((row["group"], row["member"]) for row in rows)


def test_a_completion_has_the_stored_tokens_and_values(run_dir: Path, rows: list[dict[str, Any]]) -> None:
    reader = SampleReader(run_dir)
    for row in rows[::5]:
        stored_row = reader.completion(row["step"], row["group"], row["member"])
        assert stored_row is not None
        assert {name: repr(value) for name, value in stored_row.items() if name != "time"} == {
            name: repr(value) for name, value in row.items() if name != "time"
        }
    assert reader.completion(1, "1-0", 99) is None


def test_steps_have_their_numbers(run_dir: Path, rows: list[dict[str, Any]]) -> None:
    steps = SampleReader(run_dir).steps()
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    for step in steps:
        of_step = [row for row in rows if row["step"] == step["step"]]
        states = [row["state"] for row in of_step]
        evaluated = int(step["step"] % EVALUATED == 0)
        assert (step["completions"], step["groups"]) == (6, 3)
        assert step["evaluation"] == evaluated
        assert [step[state] for state in STATES] == [states.count(state) for state in STATES]


def test_a_run_that_merges_its_parts_is_read_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MERGED_PARTS", 2)
    wrong: list[str] = []
    with writing(tmp_path) as writer:
        put(writer, 1)
        written, ended = [1], threading.Event()

        def read() -> None:
            reader = SampleReader(tmp_path)
            while not ended.is_set():
                before = written[0]
                steps = [step["step"] for step in reader.steps()]
                if steps != list(range(1, len(steps) + 1)) or len(steps) < before:
                    wrong.append(f"{before}: {steps}")

        reading = threading.Thread(target=read)
        reading.start()
        for step in range(2, 60):
            put(writer, step)
            written[0] = step
        ended.set()
        reading.join()
    assert wrong == []


def test_a_page_has_its_own_rows_while_parts_get_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a part may move between the query for the places of a page and that for its rows."""
    with writing(tmp_path) as writer:
        for step in (1, 2):
            put(writer, step, groups=4)
    (first, _) = parts_of(tmp_path / FOLDER)
    rows_at, moved = SampleDatabase.rows_at, []

    def moving(self: SampleDatabase, *arguments: Any) -> Any:
        if not moved:
            moved.append(True)
            (table,) = blocks(first)
            write_part(tmp_path / FOLDER, 1, 1, [table.slice(1)], SCHEMA)
        return rows_at(self, *arguments)

    monkeypatch.setattr(SampleDatabase, "rows_at", moving)
    page = SampleReader(tmp_path).completions(Filter())
    names = [f"1-{n}" for n in (1, 2, 3)] + [f"2-{n}" for n in range(4)]
    assert (page.total, [row["group"] for row in page.rows]) == (7, names)


def test_pages_are_whole_while_the_run_writes_and_merges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MERGED_PARTS", 2)
    wrong: list[str] = []
    with writing(tmp_path) as writer:
        put(writer, 1, groups=3)
        written, ended = [1], threading.Event()

        def read() -> None:
            reader = SampleReader(tmp_path)
            while not ended.is_set():
                before = written[0]
                page = reader.completions(Filter(), start=2, count=1000)
                names = [row["group"] for row in page.rows]
                expected = [f"{1 + n // 3}-{n % 3}" for n in range(2, page.total)]
                if names != expected or page.total < 3 * before:
                    wrong.append(f"{before}: {page.total} {names}")

        reading = threading.Thread(target=read)
        reading.start()
        for step in range(2, 40):
            put(writer, step, groups=3)
            written[0] = step
        ended.set()
        reading.join()
    assert wrong == []


def test_parts_of_an_earlier_version_lack_columns_that_are_null_then(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        for step in (1, 2):
            put(writer, step)
    for part in parts_of(tmp_path / FOLDER):
        (table,) = blocks(part)
        old = table.drop_columns(["worker"] if part.first == 1 else ["worker", "entropies"])
        write_part(tmp_path / FOLDER, part.first, part.last, [old], old.schema)
    reader = SampleReader(tmp_path)
    assert [row["worker"] for row in reader.completions(Filter()).rows] == [None, None]
    assert reader.completions(Filter(source="")).total == 2
    assert [row["trained"] for row in reader.steps()] == [1, 1]
    one = reader.completion(2, "2-0", 0)
    assert one is not None
    assert (one["worker"], one["entropies"], one["group"]) == (None, None, "2-0")
    merge(tmp_path / FOLDER, parts_of(tmp_path / FOLDER), SCHEMA)
    assert [row["step"] for row in reader.completions(Filter()).rows] == [1, 2]


def test_a_new_run_has_no_completions_yet(tmp_path: Path) -> None:
    with writing(tmp_path):
        reader = SampleReader(tmp_path)
        assert reader.steps() == []
        assert reader.completions(Filter(text="a", clipped=True)).total == 0
        assert reader.completion(1, "g", 0) is None


def test_a_missing_or_foreign_directory_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(NoSamples, match="there is no such directory"):
        SampleReader(tmp_path / "gone")
    with pytest.raises(NoSamples, match=r"has no folder samples; .* \(learner\.samples\.share\)"):
        SampleReader(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PAR1 and nothing else", b"\x00" * 4096])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    with writing(tmp_path) as writer:
        put(writer, 1)
    name = "000000002-000000002.parquet"
    (tmp_path / "samples" / name).write_bytes(content)
    reader = SampleReader(tmp_path)
    assert [row["step"] for row in reader.steps()] == [1]
    assert reader.unreadable == [name]
    with pytest.raises(NoSamples, match=re.escape(name)) as raised:
        reader.completions(Filter(first_step=2, last_step=2))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_a_file_with_damaged_data_below_a_sound_footer_is_named_and_left_out(
    tmp_path: Path, at: float
) -> None:
    with writing(tmp_path) as writer:
        for step in (1, 2, 3):
            put(writer, step)
            writer.wait()
    part = tmp_path / "samples" / "000000002-000000002.parquet"
    sound = part.read_bytes()
    data = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
    start = int(at * data)
    part.write_bytes(sound[:start] + bytes(byte ^ 0xFF for byte in sound[start:data]) + sound[data:])
    reader = SampleReader(tmp_path)
    names = [(step, f"{step}-0", 0) for step in (1, 2, 3)]
    assert [row["step"] for row in reader.named(names)] == [1, 3]
    assert reader.unreadable == [part.name]
    with pytest.raises(NoSamples, match=f"{part.name} cannot be read: the data are cut or damaged"):
        reader.tokens_of_step(2)
    part.write_bytes(sound)
    assert {row["step"] for row in reader.steps()} == {1, 2, 3}
    assert reader.unreadable == []


def test_a_wrong_query_is_not_blamed_on_the_files(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        put(writer, 1)
    reader = SampleReader(tmp_path)
    with pytest.raises(NoSamples, match="colour"):
        reader._rows("select colour from samples", {})
    assert reader.unreadable == []


def test_completions_are_read_by_name_in_the_order_of_the_names(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        for step in (1, 2, 3):
            put(writer, step)
            writer.wait()
    reader = SampleReader(tmp_path)
    names = [(step, f"{step}-0", 0) for step in (3, 1, 2)]
    gone = (2, "no such group", 0)
    assert reader.named([names[-1], gone, *names]) == [
        reader.completion(*name) for name in (names[-1], *names)
    ]
    assert reader.named([]) == []


def test_orders_and_counts_that_do_not_exist_are_refused(run_dir: Path, rows: list[dict[str, Any]]) -> None:
    reader = SampleReader(run_dir)
    with pytest.raises(ValueError, match="order: got 'step; drop'"):
        reader.completions(Filter(), order="step; drop")
    for start, count in ((-1, 5), (0, -1), (0, 10**6)):
        with pytest.raises(ValueError, match="needs start >= 0"):
            reader.completions(Filter(), start=start, count=count)


@pytest.mark.usefixtures("rows")
def test_a_slow_reader_of_the_rows_is_not_cut(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "QUERY_SECONDS", 0.5)
    monkeypatch.setattr(database, "ROWS_OF_A_BATCH", 2)
    rows = SampleReader(run_dir).stream(Filter(), order="step", descending=False, most=100)
    shown = [next(rows)]
    time.sleep(0.8)
    shown.extend(rows)
    assert len(shown) == SampleReader(run_dir).completions(Filter()).total > 4


def test_a_slow_query_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "QUERY_SECONDS", 0.2)
    slow = "select count(*) as many from range(1000000) a, range(1000000) b where a.range + b.range < 0"
    with pytest.raises(NoSamples, match=r"took more than 0\.2 s"):
        SampleDatabase(tmp_path).rows([], slow, {})


def test_the_footers_of_files_that_are_gone_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []

    def connect(**options: Any) -> Any:
        opened.append(len(opened))
        return real(**options)

    real = duckdb.connect
    monkeypatch.setattr(duckdb, "connect", connect)
    monkeypatch.setattr(database, "MOST_FOOTERS", 4)
    monkeypatch.setattr(database, "_DATABASE", database._Database())
    with writing(tmp_path) as writer:
        put(writer, 1)
    (part,) = parts_of(tmp_path / FOLDER)
    reader = SampleReader(tmp_path)
    for step in range(2, 14):
        path = part.path.rename(part.path.with_name(f"{step:09}-{step:09}.parquet"))
        part = replace(part, path=path)
        assert [row["step"] for row in reader.steps()] == [1]
    assert 2 <= len(opened) <= 4
