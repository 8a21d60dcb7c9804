"""Spans are written line by line in a thread; a full or slow disk neither delays nor ends the learner."""

import json
import pickle
import resource
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from learner.fakes import said, silent_log
from samples.made_up import completion, group
from slipstream.records import StepTimes
from slipstream.samples.timeline import writer as module
from slipstream.samples.timeline.reader import TimelineReader
from slipstream.samples.timeline.writer import Item, Timeline, TimelineFile


@contextmanager
def writing(run_dir: Path, log: Any = None) -> Iterator[Timeline]:
    timeline = Timeline({"timeline.jsonl": TimelineFile(run_dir)}, log or silent_log())
    yield timeline
    timeline.close()


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "timeline.jsonl").read_text().splitlines()]


def test_a_line_has_lane_name_times_and_step(tmp_path: Path) -> None:
    with writing(tmp_path) as timeline:
        now = time.monotonic()
        timeline.add("train", now - 3, now - 1, step=7)
        timeline.add("pause", now - 1, now, lane="rollout-0", failed=True)
    train, pause = rows(tmp_path)
    assert list(train) == ["lane", "what", "start", "end", "step"]
    assert (train["lane"], train["what"], train["step"]) == ("learner", "train", 7)
    assert train["end"] - train["start"] == pytest.approx(2, abs=1e-5)
    assert abs(train["end"] + 1 - time.time()) < 5
    assert {name: pause[name] for name in ("lane", "what", "failed")} == {
        "lane": "rollout-0",
        "what": "pause",
        "failed": True,
    }
    assert "step" not in pause


def test_a_block_that_raises_is_a_failed_span(tmp_path: Path) -> None:
    with writing(tmp_path) as timeline:
        with pytest.raises(RuntimeError), timeline.during("train", step=1):
            raise RuntimeError
        with timeline.during("train", step=1):
            pass
    assert [row.get("failed", False) for row in rows(tmp_path)] == [True, False]


def test_a_resumed_run_appends_and_shows_steps_that_it_trains_again(tmp_path: Path) -> None:
    for steps in ((1, 2, 3), (2, 3)):
        with writing(tmp_path) as timeline:
            for step in steps:
                timeline.event("train", lane="learner", step=step)
    lines = (tmp_path / "timeline.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines if line] == [1, 2, 3, 2, 3]
    assert TimelineReader(tmp_path).window(0, 1e11).spans == 5


def test_a_line_that_a_crash_has_torn_spoils_no_other(tmp_path: Path) -> None:
    (tmp_path / "timeline.jsonl").write_text('{"lane": "learner", "wh')
    with writing(tmp_path) as timeline:
        timeline.event("train", lane="learner", step=2)
    assert [bar.step for bar in TimelineReader(tmp_path).window(0, 1e11).bars] == [2]


def test_a_full_disk_is_logged_once_and_writing_goes_on_with_the_next_line(tmp_path: Path) -> None:
    log, before = silent_log(), resource.getrlimit(resource.RLIMIT_FSIZE)
    with writing(tmp_path, log) as timeline:

        def wait() -> None:
            while timeline._queue.qsize():  # the thread has taken what was put
                time.sleep(0.01)
            time.sleep(0.1)

        timeline.event("train", lane="learner", step=1)
        wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (110, before[1]))
        try:
            for step in (2, 3, 4):
                timeline.event("train", lane="learner", step=step)
                wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        timeline.event("train", lane="learner", step=5)
    assert said(log).count("spans are lost") == 1
    assert [bar.step for bar in TimelineReader(tmp_path).window(0, 1e11).bars] == [1, 5]


class SlowSink:
    """Takes spans once `gate` is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.taken: list[Item] = []

    def take(self, items: Sequence[Item]) -> None:
        self.gate.wait()
        self.taken += items

    def close(self) -> None:
        pass


def test_spans_that_a_slow_disk_cannot_take_are_left_out_and_logged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "QUEUED", 5)
    log, sink = silent_log(), SlowSink()
    timeline = Timeline({"slow": sink}, log)
    began = time.monotonic()
    for step in range(100):
        timeline.event("train", lane="learner", step=step)
    assert time.monotonic() - began < 1.0
    sink.gate.set()
    timeline.close()
    assert 5 <= len(sink.taken) <= 7
    assert said(log).count("spans are left out") == 1


def test_a_batch_that_waits_for_a_slow_disk_keeps_no_tokens() -> None:
    sink = SlowSink()
    timeline = Timeline({"slow": sink}, silent_log())
    large = group("g", [completion(Random(1), words="word " * 5000)])
    timeline.trained(1, [large] * 4, StepTimes(training=1.0, trained=2.0))
    sink.gate.set()
    timeline.close()
    (batch,) = sink.taken
    assert len(pickle.dumps(batch)) < 2000


def test_the_end_waits_for_a_stuck_disk_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.3)
    log, sink = silent_log(), SlowSink()
    timeline = Timeline({"stuck": sink}, log)
    timeline.event("train", lane="learner")
    began = time.monotonic()
    timeline.close()
    assert time.monotonic() - began < 2.0
    assert "the end of the timeline is not written" in said(log)
    sink.gate.set()


def test_a_sink_that_fails_does_not_keep_spans_from_another(tmp_path: Path) -> None:
    class Broken(SlowSink):
        def take(self, items: Sequence[Item]) -> None:
            raise RuntimeError("broken")

    log = silent_log()
    timeline = Timeline({"broken": Broken(), "timeline.jsonl": TimelineFile(tmp_path)}, log)
    timeline.event("join", lane="r")
    timeline.close()
    assert [row["what"] for row in rows(tmp_path)] == ["join"]
    assert 'sink=broken error="RuntimeError: broken"' in said(log)
