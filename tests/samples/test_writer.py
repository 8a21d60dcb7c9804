"""The thread that stores completions: merged parts, a bound of bytes, a resumed run, a slow or full disk."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest
from learner.fakes import said, silent_log
from samples.made_up import completion, group
from slipstream.config import SamplesConfig, parse_config
from slipstream.learner.clients import decode_group
from slipstream.rpc import codec
from slipstream.samples import writer as module
from slipstream.samples.parts import parts_of
from slipstream.samples.share import is_kept
from slipstream.samples.writer import FilteredGroup, SampleWriter, open_sample_writer
from slipstream.telemetry.logs import Log


@contextmanager
def writing(
    run_dir: Path, *, version: int = 0, log: Log | None = None, **config: Any
) -> Iterator[SampleWriter]:
    made = SampleWriter(
        run_dir,
        SamplesConfig(**config),
        weights={"exact_match": 1.0},
        version=version,
        decode=decode_group,
        log=log or silent_log(),
    )
    yield made
    made.close()


def put(writer: SampleWriter, step: int, *, groups: int = 1, words: str = "an answer") -> None:
    random = Random(step)
    made = [group(f"{step}-{n}", [completion(random, words=words)]) for n in range(groups)]
    writer.put(step, made, None)
    writer.wait()


def stored(run_dir: Path) -> list[tuple[int, str]]:
    tables = [pq.read_table(part.path, columns=["step", "group"]) for part in parts_of(run_dir / "samples")]
    return [(row["step"], row["group"]) for table in tables for row in table.to_pylist()]


def test_parts_of_single_steps_become_parts_of_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MERGED_PARTS", 3)
    with writing(tmp_path) as writer:
        for step in range(1, 15):
            put(writer, step)
    assert stored(tmp_path) == [(step, f"{step}-0") for step in range(1, 15)]
    parts = [(part.first, part.last) for part in parts_of(tmp_path / "samples")]
    assert parts == [(1, 9), (10, 12), (13, 13), (14, 14)]


def test_a_full_folder_keeps_half_of_the_groups_of_the_whole_run(tmp_path: Path) -> None:
    log = silent_log()
    with writing(tmp_path, max_mib=1, log=log) as writer:
        for step in range(1, 31):
            put(writer, step, groups=8, words=_noise(step))
    share = json.loads((tmp_path / "samples" / "store.json").read_text())["share"]
    assert share in (0.5, 0.25, 0.125)
    everything = [(step, f"{step}-{n}") for step in range(1, 31) for n in range(8)]
    assert stored(tmp_path) == [one for one in everything if is_kept(one[1], share)]
    assert "half of the stored completions are removed" in said(log)
    size = sum(part.path.stat().st_size for part in parts_of(tmp_path / "samples"))
    assert size < 1.2 * 2**20


def _noise(seed: int) -> str:
    random = Random(seed)
    return "".join(chr(random.randint(33, 126)) for _ in range(30_000))


def test_a_smaller_share_is_a_part_of_a_larger_one() -> None:
    names = [f"g{n}" for n in range(2000)]
    of = {share: {name for name in names if is_kept(name, share)} for share in (1.0, 0.5, 0.25, 0.0)}
    assert of[1.0] == set(names)
    assert of[0.25] < of[0.5]
    assert 900 < len(of[0.5]) < 1100
    assert not of[0.0]


def test_a_resumed_run_forgets_the_steps_that_it_trains_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MERGED_PARTS", 4)
    with writing(tmp_path) as writer:
        for step in range(1, 11):
            put(writer, step)
    with writing(tmp_path, version=6) as writer:
        assert [step for step, _ in stored(tmp_path)] == [1, 2, 3, 4, 5, 6]
        put(writer, 7)
    assert [step for step, _ in stored(tmp_path)] == [1, 2, 3, 4, 5, 6, 7]


def test_a_resumed_run_goes_on_with_the_share_that_was_left(tmp_path: Path) -> None:
    with writing(tmp_path, share=0.25):
        pass
    with writing(tmp_path, share=1.0) as writer:
        for step in range(1, 9):
            put(writer, step, groups=4)
    assert stored(tmp_path) == [
        (step, f"{step}-{n}") for step in range(1, 9) for n in range(4) if is_kept(f"{step}-{n}", 0.25)
    ]


def test_steps_that_a_slow_disk_cannot_take_are_left_out_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, gate = silent_log(), threading.Event()
    original = module.write_part

    def slow(*arguments: Any) -> Any:
        gate.wait(10)
        return original(*arguments)

    monkeypatch.setattr(module, "write_part", slow)
    with writing(tmp_path, log=log) as writer:
        made = [group("g", [completion(Random(1))])]
        taken = [writer.put(step, made, None) for step in range(1, 9)]
        gate.set()
    assert taken.count(False) >= 4
    assert len(stored(tmp_path)) == taken.count(True)
    assert "the disk is too slow" in said(log)


def test_a_full_disk_is_logged_and_the_next_steps_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, original = silent_log(), module.write_part

    def full(folder: Path, first: int, *rest: Any) -> Any:
        if first == 2:
            raise OSError(28, "No space left on device")
        return original(folder, first, *rest)

    monkeypatch.setattr(module, "write_part", full)
    with writing(tmp_path, log=log) as writer:
        for step in (1, 2, 3):
            put(writer, step)
    assert [step for step, _ in stored(tmp_path)] == [1, 3]
    assert "No space left on device" in said(log)


def test_filtered_groups_are_stored_with_their_reason_unless_nobody_can_read_them(tmp_path: Path) -> None:
    log, one = silent_log(), group("f", [completion(Random(1))])
    readable = FilteredGroup(payload=codec.group_to_proto(one).SerializeToString(), reason="equal rewards")
    with writing(tmp_path, log=log) as writer:
        writer.put(3, [], None, filtered=[FilteredGroup(payload=b"\xff\xff", reason="invalid"), readable])
    (part,) = parts_of(tmp_path / "samples")
    (row,) = pq.read_table(part.path).to_pylist()
    assert (row["step"], row["group"], row["state"], row["reason"]) == (3, "f", "filtered", "equal rewards")
    assert row["token_ids"] == list(one.completions[0].token_ids)
    assert "a filtered group is not stored" in said(log)


def test_a_run_that_stores_nothing_has_no_folder(tmp_path: Path) -> None:
    config = parse_config({"learner": {"samples": {"share": 0}}, "rewards": [{"name": "exact_match"}]})

    async def opened() -> None:
        async with open_sample_writer(
            config, tmp_path, version=0, decode=decode_group, log=silent_log()
        ) as writer:
            assert writer is None

    asyncio.run(opened())
    assert list(tmp_path.iterdir()) == []
