"""The timeline of a real run with an emulated engine: its seconds are those of metrics.jsonl."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from slipstream.samples.folder import stored_parts
from slipstream.samples.table import TIMES
from slipstream.samples.timeline.reader import TimelineReader
from system.driver import running

EMULATED = ("rollout.engine=emulated", "rollout.emulated.median_seconds=0.1")
CLOCK = 0.05
"""Actor and learner are on one machine: their clocks differ by less."""


def test_the_timeline_of_a_run_has_the_seconds_of_its_metrics_and_the_life_of_each_group(
    tmp_path: Path,
) -> None:
    with running(tmp_path, *EMULATED, "weights.overlap=false", steps=6) as run:
        assert run.finish() == 0, run.said()
    spans = [json.loads(line) for line in (run.run_dir / "timeline.jsonl").read_text().splitlines()]
    rows = {row["step"]: row for row in run.rows("step")}
    for what, key in (("wait", "wait_seconds"), ("train", "train_seconds"), ("publish", "publish_seconds")):
        lengths = {s["step"]: s["end"] - s["start"] for s in of(spans, "learner", what)}
        assert lengths == pytest.approx({step: row[key] for step, row in rows.items()}, abs=0.1), what
    assert [span["step"] for span in of(spans, "learner", "checkpoint")] == [5, 6]
    assert [span["step"] for span in of(spans, "learner", "evaluate")] == [0, 5, 6]
    pauses = {span["step"]: span for span in of(spans, "rollout-0", "pause")}
    for step, row in rows.items():
        pause = pauses[step]["end"] - pauses[step]["start"]
        assert pause == pytest.approx(row["pause_seconds"], abs=0.1)
        (publish,) = [span for span in of(spans, "learner", "publish") if span["step"] == step]
        assert (
            publish["start"] - CLOCK <= pauses[step]["start"] <= pauses[step]["end"] <= publish["end"] + CLOCK
        )
    assert len(of(spans, "rollout-0", "join")) == len(of(spans, "rollout-0", "leave")) == 1
    trains = {span["step"]: span for span in of(spans, "learner", "train")}
    stored = groups_of(run.run_dir)
    groups = [row for row in stored if row["state"] not in ("filtered", "evaluation")]
    assert len(groups) == 6 * 8
    reader = TimelineReader(run.run_dir)
    for row in groups:
        moments = [row[name] for name in TIMES]
        assert all(before <= after + CLOCK for before, after in pairwise(moments)), row
        assert row["rollouts"] == ["rollout-0"]
        assert row["training_at"] == pytest.approx(trains[row["step"]]["start"], abs=CLOCK)
        assert row["trained_at"] == pytest.approx(trains[row["step"]]["end"], abs=CLOCK)
        life = reader.group(row["group"])
        assert life is not None
        assert [(p.lane, p.what) for p in life.phases] == [
            ("actor-0", "place"),
            ("rollout-0", "sample"),
            ("actor-0", "score"),
            ("replay", "buffer"),
            ("learner", "queue"),
            ("learner", "train"),
        ]
    extent = reader.extent()
    assert extent is not None
    window = reader.window(*extent)
    assert {bar.lane for bar in window.bars} == {"learner", "replay", "actor-0", "rollout-0"}
    assert sum(bar.what == "sample" for bar in window.bars) == len(stored)


def of(spans: list[dict[str, Any]], lane: str, what: str) -> list[dict[str, Any]]:
    return [span for span in spans if (span["lane"], span["what"]) == (lane, what)]


def groups_of(run_dir: Path) -> list[dict[str, Any]]:
    """Return the first row of each stored group."""
    columns = ["step", "state", "group", "member", "rollouts", *TIMES]
    tables = [pq.read_table(part.path, columns=columns) for part in stored_parts(run_dir / "samples")]
    return [row for table in tables for row in table.to_pylist() if row["member"] == 0]
