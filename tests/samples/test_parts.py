"""The folder of stored completions, at every moment of a write, a merge and a crash."""

from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream.samples import parts as module
from slipstream.samples.folder import parts_of
from slipstream.samples.parts import clean, merge, store_step, write_part

SCHEMA = pa.schema([("step", pa.int32())])


class Crash(BaseException):
    """Ends the process where it stands."""


def rows(*steps: int) -> list[pa.Table]:
    return [pa.table({"step": list(steps)}, schema=SCHEMA)]


def stored(folder: Path) -> list[int]:
    """Return the steps of all rows that a reader finds."""
    return [step for part in parts_of(folder) for step in pq.read_table(part.path)["step"].to_pylist()]


def test_parts_come_in_the_order_of_their_steps(tmp_path: Path) -> None:
    for step in (3, 1, 12):
        write_part(tmp_path, step, step, rows(step), SCHEMA)
    assert [(part.first, part.last) for part in parts_of(tmp_path)] == [(1, 1), (3, 3), (12, 12)]
    assert min(file.name for file in tmp_path.iterdir()) == "000000001-000000001.parquet"


def test_a_merged_part_has_the_rows_of_its_parts_in_order(tmp_path: Path) -> None:
    parts = [write_part(tmp_path, step, step, rows(step, step), SCHEMA) for step in (1, 2, 5)]
    merged = merge(tmp_path, parts, SCHEMA)
    assert (merged.first, merged.last) == (1, 5)
    assert stored(tmp_path) == [1, 1, 2, 2, 5, 5]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_merged_part_has_few_row_groups_which_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [write_part(tmp_path, step, step, rows(*[step] * 10), SCHEMA) for step in range(1, 11)]
    monkeypatch.setattr(module, "ROWS_OF_A_BLOCK", 40)
    with pq.ParquetFile(merge(tmp_path, parts, SCHEMA).path) as file:
        assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [40, 40, 20]
        first = file.metadata.row_group(0).column(0).statistics
    assert (first.min, first.max) == (1, 4)
    monkeypatch.setattr(module, "BYTES_OF_A_BLOCK", 4 * 15)
    write_part(tmp_path, 20, 20, rows(*[20] * 10) * 4, SCHEMA)
    with pq.ParquetFile(tmp_path / "000000020-000000020.parquet") as file:
        assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [20, 20]


def test_rows_of_a_step_are_added_to_its_part_or_replace_those_there(tmp_path: Path) -> None:
    parts = [write_part(tmp_path, step, step, rows(step), SCHEMA) for step in (1, 2, 3)]
    merge(tmp_path, parts, SCHEMA)
    for step, replace in ((2, False), (3, True), (7, True)):
        store_step(tmp_path, step, *rows(step, step), SCHEMA, replace=replace)
    assert stored(tmp_path) == [1, 2, 2, 2, 3, 3, 7, 7]
    assert [(part.first, part.last) for part in parts_of(tmp_path)] == [(1, 3), (7, 7)]


def test_a_part_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> object:
        yield from rows(1)
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        write_part(tmp_path, 1, 1, broken(), SCHEMA)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_crash_at_any_moment_loses_and_repeats_no_stored_row(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    random, folder = Random(seed), tmp_path_factory.mktemp("parts")
    expected: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        left = random.randint(1, 30)

        def crashing(original: object) -> object:
            def call(path: Path, *arguments: object, **options: object) -> object:
                nonlocal left
                left -= 1
                if left == 0:
                    raise Crash
                return original(path, *arguments, **options)  # type: ignore[operator]

            return call

        patch.setattr(Path, "replace", crashing(Path.replace))
        patch.setattr(Path, "unlink", crashing(Path.unlink))
        try:
            for step in range(1, 40):
                write_part(folder, step, step, rows(step), SCHEMA)
                expected.append(step)
                parts = parts_of(folder)
                if random.random() < 0.3:
                    merge(folder, parts[random.randrange(len(parts)) :], SCHEMA)
        except Crash:
            pass
    assert stored(folder) in (expected, [*expected, len(expected) + 1])
    clean(folder)
    assert stored(folder) in (expected, [*expected, len(expected) + 1])
    assert len(list(folder.iterdir())) == len(parts_of(folder))
