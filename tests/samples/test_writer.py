"""The thread that stores completions: merged parts, a bound of bytes, a resumed run, a slow or full disk."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
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
from slipstream.samples.folder import parts_of
from slipstream.samples.share import is_kept
from slipstream.samples.table import TRAINED_TYPES
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


def stored(run_dir: Path, folder: str = "samples") -> list[tuple[int, str]]:
    tables = [pq.read_table(part.path, columns=["step", "group"]) for part in parts_of(run_dir / folder)]
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
    original = module.store_step

    def slow(*arguments: Any, **options: Any) -> Any:
        gate.wait(10)
        return original(*arguments, **options)

    monkeypatch.setattr(module, "store_step", slow)
    with writing(tmp_path, log=log) as writer:
        made = [group("g", [completion(Random(1))])]
        taken = [writer.put(step, made, None) for step in range(1, 9)]
        gate.set()
    assert taken.count(False) >= 4
    assert len(stored(tmp_path)) == taken.count(True)
    assert "the disk is too slow" in said(log)


def test_a_slow_disk_loses_nothing_that_is_put_at_the_end_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, gate = silent_log(), threading.Event()
    original = module.store_step

    def slow(*arguments: Any, **options: Any) -> Any:
        gate.wait(10)
        return original(*arguments, **options)

    monkeypatch.setattr(module, "store_step", slow)
    with writing(tmp_path, log=log) as writer:
        made = [group("g", [completion(Random(1))])]
        taken = [writer.put(1, made, None), writer.put(2, made, None)]
        writer.take_all()
        taken += [writer.put(step, made, None) for step in (3, 4)]
        taken.append(writer.put_evaluation(4, payloads("e")))
        gate.set()
    assert taken == [True] * 5
    assert [step for step, _ in stored(tmp_path)] == [1, 2, 3, 4]
    assert {step for step, _ in evaluations(tmp_path)} == {4}


def test_the_end_waits_for_a_stuck_disk_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.3)
    log, gate = silent_log(), threading.Event()
    monkeypatch.setattr(module, "store_step", lambda *_, **__: gate.wait(10))
    began = time.monotonic()
    with writing(tmp_path, log=log) as writer:
        for step in range(1, 4):
            writer.put(step, [group("g", [completion(Random(1))])], None)
    assert time.monotonic() - began < 5
    assert "the last completions are not stored" in said(log)
    gate.set()


def test_a_full_disk_is_logged_and_the_next_steps_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, original = silent_log(), module.store_step

    def full(folder: Path, step: int, *rest: Any, **options: Any) -> Any:
        if step == 2:
            raise OSError(28, "No space left on device")
        return original(folder, step, *rest, **options)

    monkeypatch.setattr(module, "store_step", full)
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
    assert "a group is not stored state=filtered reason=invalid" in said(log)


def test_a_run_that_stores_nothing_has_no_folder(tmp_path: Path) -> None:
    config = parse_config({"learner": {"samples": {"share": 0}}, "rewards": [{"name": "exact_match"}]})

    async def opened() -> None:
        async with open_sample_writer(
            config, tmp_path, version=0, decode=decode_group, log=silent_log()
        ) as writer:
            assert writer is None

    asyncio.run(opened())
    assert list(tmp_path.iterdir()) == []


def payloads(*names: str) -> list[bytes]:
    """Return groups of an evaluation as replay gives them."""
    return [
        codec.group_to_proto(
            group(name, [completion(Random(1)), completion(Random(2), failed=True)])
        ).SerializeToString()
        for name in names
    ]


def evaluations(run_dir: Path) -> list[tuple[int, str]]:
    return stored(run_dir, "samples/evaluations")


def test_an_evaluation_is_stored_beside_the_steps_without_columns_of_training(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        put(writer, 5)
        writer.put_evaluation(4, payloads("e1-0", "e1-1"))
    assert stored(tmp_path) == [(5, "5-0")]
    (part,) = parts_of(tmp_path / "samples/evaluations")
    rows = pq.read_table(part.path).to_pylist()
    assert [(row["step"], row["group"], row["member"], row["state"]) for row in rows] == [
        (4, name, member, "evaluation") for name in ("e1-0", "e1-1") for member in (0, 1)
    ]
    assert {row[name] for row in rows for name in TRAINED_TYPES} == {None}
    assert [row["reason"] for row in rows[:2]] == ["", "exact_match: no verifier"]
    assert [row["reward"] is None for row in rows[:2]] == [False, True]


def test_a_retried_evaluation_takes_the_place_of_the_first_also_in_a_merged_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MERGED_PARTS", 2)
    with writing(tmp_path) as writer:
        for version in (0, 10, 20):
            writer.put_evaluation(version, payloads(f"e{version}"))
            writer.wait()
        assert [(p.first, p.last) for p in parts_of(tmp_path / "samples/evaluations")] == [(0, 10), (20, 20)]
        writer.put_evaluation(10, payloads("again"))
        writer.put_evaluation(20, payloads("again"))
    once = dict.fromkeys(evaluations(tmp_path))
    assert sorted(once) == [(0, "e0"), (10, "again"), (20, "again")]
    assert len(evaluations(tmp_path)) == 2 * len(once)


def test_a_resumed_run_keeps_the_evaluations_up_to_its_checkpoint(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        for version in (0, 10, 20):
            writer.put_evaluation(version, payloads(f"e{version}"))
            writer.wait()
    with writing(tmp_path, version=10) as writer:
        writer.put_evaluation(20, payloads("again"))
    assert sorted(set(evaluations(tmp_path))) == [(0, "e0"), (10, "e10"), (20, "again")]


def test_evaluations_count_in_the_bound_of_bytes(tmp_path: Path) -> None:
    noisy = group("e", [completion(Random(1), words=_noise(seed)) for seed in range(50)])
    with writing(tmp_path, max_mib=1) as writer:
        for version in range(12):
            one = replace(noisy, group_id=f"e{version}")
            writer.put_evaluation(version, [codec.group_to_proto(one).SerializeToString()])
            writer.wait()
    share = json.loads((tmp_path / "samples" / "store.json").read_text())["share"]
    assert share < 1
    everything = [(version, f"e{version}") for version in range(12)]
    assert sorted(set(evaluations(tmp_path))) == sorted(one for one in everything if is_kept(one[1], share))


def test_groups_that_come_after_the_last_step_are_stored_with_it(tmp_path: Path) -> None:
    late = FilteredGroup(payload=payloads("late")[0], reason="equal")
    with writing(tmp_path) as writer:
        put(writer, 3)
        writer.put(3, [], None, filtered=[late])
    assert stored(tmp_path) == [(3, "3-0"), (3, "late"), (3, "late")]


def test_a_crash_while_half_of_the_groups_are_removed_removes_no_further_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = module.write_part

    def put_noise(writer: SampleWriter, step: int) -> None:
        made = [group(f"{step}-{n}", [completion(Random(n), words=_noise(8 * step + n))]) for n in range(8)]
        writer.put(step, made, None)
        writer.wait()

    def crashing(folder: Path, first: int, *rest: Any) -> Any:
        if first == 3:
            raise OSError(5, "Input/output error")
        return original(folder, first, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_part", crashing)
        with writing(tmp_path, max_mib=1) as writer:
            step = 0
            while (share := json.loads((tmp_path / "samples/store.json").read_text())["share"]) == 1:
                step += 1
                put_noise(writer, step)
    assert share == 0.5
    assert step > 3, "the parts before step 3 are rewritten, and the others are not"
    with writing(tmp_path, version=step, max_mib=1) as writer:
        put_noise(writer, step + 1)
    assert json.loads((tmp_path / "samples/store.json").read_text())["share"] == 0.5
    everything = [(number, f"{number}-{n}") for number in range(1, step + 2) for n in range(8)]
    assert stored(tmp_path) == [one for one in everything if is_kept(one[1], 0.5)]
