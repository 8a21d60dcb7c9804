"""The spans of the learner and of its rollouts, in a loop, a fleet and a run that is resumed."""

import asyncio
import json
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from learner.fakes import silent_log
from learner.learner_session import configured, session
from learner.mortal import Script, kill
from learner.test_loop import FakeSamples, Scene
from learner.worker import Worker, learner_of, until
from slipstream.learner.policy.model import Policy
from slipstream.samples.timeline.reader import TimelineReader
from slipstream.samples.timeline.spans import FILE, Span, TrainedBatch
from slipstream.samples.timeline.writer import Item, Timeline


class Kept:
    """A sink that keeps all items."""

    def __init__(self) -> None:
        self.items: list[Item] = []

    def take(self, items: Any) -> None:
        self.items += items

    def close(self) -> None:
        pass

    def spans(self, what: str, *, lane: str = "learner") -> list[Span]:
        return [x for x in self.items if isinstance(x, Span) and (x.what, x.lane) == (what, lane)]


def kept_timeline() -> tuple[Kept, Timeline]:
    kept = Kept()
    return kept, Timeline({"kept": kept}, silent_log())


def overlap(one: Span, other: Span) -> float:
    """Return the seconds that two spans have in common."""
    return min(one.end, other.end) - max(one.start, other.start)


def test_the_spans_of_a_step_are_the_seconds_of_its_row(policy: Policy, tmp_path: Path) -> None:
    kept, timeline = kept_timeline()
    samples = FakeSamples()
    scene = Scene(policy, tmp_path, "weights.overlap=false", timeline=timeline, samples=samples)
    scene.run()
    timeline.close()
    rows = [row for row in scene.rows if row["event"] == "step"]
    assert len(rows) == 3
    for what, key in (("wait", "wait_seconds"), ("train", "train_seconds"), ("publish", "publish_seconds")):
        spans = kept.spans(what)
        assert [span.step for span in spans] == [1, 2, 3]
        for span, row in zip(spans, rows, strict=True):
            assert span.end - span.start == pytest.approx(row[key], abs=0.02)
            assert not span.failed
    for wait, train, publish in zip(*map(kept.spans, ("wait", "train", "publish")), strict=True):
        assert wait.end <= train.start + 1e-3
        assert train.end <= publish.start + 1e-3
    batches = [item for item in kept.items if isinstance(item, TrainedBatch)]
    assert [batch.step for batch in batches] == [1, 2, 3]
    assert [batch.times for batch in batches] == samples.times
    for batch, train in zip(batches, kept.spans("train"), strict=True):
        assert batch.times.training == pytest.approx(train.start, abs=0.02)
        assert batch.times.trained == pytest.approx(train.end, abs=0.02)


def test_a_publication_beside_training_is_shown_with_its_whole_length(policy: Policy, tmp_path: Path) -> None:
    kept, timeline = kept_timeline()
    scene = Scene(
        policy, tmp_path, "weights.overlap=true", "learner.least_step_seconds=0.7", timeline=timeline
    )
    original = scene.publisher.publish

    async def slow(version: int) -> Any:
        await asyncio.sleep(0.6)
        return await original(version)

    scene.publisher.publish = slow
    scene.run()
    timeline.close()
    published, trained = kept.spans("publish"), kept.spans("train")
    assert [span.step for span in published] == [1, 2, 3]
    assert all(span.end - span.start >= 0.6 for span in published)
    assert overlap(published[0], trained[1]) > 0.3
    rows = [row for row in scene.rows if row["event"] == "step"]
    assert rows[0]["publish_seconds"] < 0.6, "the step did not wait for the publication"


def test_a_checkpoint_beside_training_and_a_failed_one_are_shown(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, timeline = kept_timeline()
    scene = Scene(
        policy,
        tmp_path,
        *("learner.checkpoint.every_steps=1", "learner.least_step_seconds=0.7", "learner.steps=4"),
        timeline=timeline,
    )
    lockstep = scene.loop._lockstep
    original, settled = lockstep.settle_checkpoint, 0

    async def slow() -> Any:
        nonlocal settled
        settled += 1
        await asyncio.sleep(0.1)
        path = await original()
        if settled == 2:
            raise OSError("full")
        return path

    monkeypatch.setattr(lockstep, "settle_checkpoint", slow)
    scene.run()
    timeline.close()
    written = kept.spans("checkpoint")
    assert [(span.step, span.failed) for span in written] == [(1, False), (2, True), (3, False), (4, False)]
    assert overlap(written[0], kept.spans("train")[1]) > 0.05


def test_a_step_that_is_stopped_has_failed(policy: Policy, tmp_path: Path) -> None:
    kept, timeline = kept_timeline()
    scene = Scene(policy, tmp_path, "learner.least_step_seconds=9", timeline=timeline)

    async def stop_soon() -> None:
        running = asyncio.create_task(scene.loop.run(scene.stop))
        await scene.events.wait_for("sample 1")
        scene.stop.set()
        await asyncio.wait_for(running, 20)

    asyncio.run(stop_soon())
    timeline.close()
    assert [(span.step, span.failed) for span in kept.spans("train")] == [(1, True)]


def play(
    policy: Policy, *workers: Worker, versions: int, staging_mib: float = 1024.0
) -> tuple[Kept, list[tuple[float, float]]]:
    """Publish versions to workers; return the spans, and when each publication began and ended."""
    kept, timeline = kept_timeline()
    times = []

    async def run() -> None:
        async with learner_of(policy, timeline=timeline, staging_mib=staging_mib) as learner:
            await learner.join(*workers)
            for version in range(1, versions + 1):
                began = time.time()
                await learner.publish(version)
                times.append((began, time.time()))

    asyncio.run(run())
    timeline.close()
    return kept, times


def test_each_rollout_has_a_pause_in_each_publication_and_a_join_and_a_leave(policy: Policy) -> None:
    kept, times = play(policy, Worker("a"), Worker("b"), versions=3)
    for lane in ("a", "b"):
        pauses = kept.spans("pause", lane=lane)
        assert [(pause.step, pause.failed) for pause in pauses] == [(1, False), (2, False), (3, False)]
        for pause, (began, ended) in zip(pauses, times, strict=True):
            assert began - 0.05 <= pause.start <= pause.end <= ended + 0.05
        assert all(before.end <= after.start for before, after in pairwise(pauses))
        (join,), (leave,) = kept.spans("join", lane=lane), kept.spans("leave", lane=lane)
        assert join.end <= pauses[0].start
        assert pauses[-1].end <= leave.start
        assert join.start == join.end


def test_a_rollout_that_dies_while_a_version_arrives_has_not_paused(policy: Policy) -> None:
    kept, _ = play(policy, Worker("a"), Worker("b", faults=("die_in_the_middle",)), versions=2)
    assert kept.spans("pause", lane="b") == []
    pauses = kept.spans("pause", lane="a")
    assert [(pause.step, pause.failed) for pause in pauses] == [(1, False), (2, False)]
    assert pauses[0].start >= kept.spans("leave", lane="b")[0].start, "it pauses to load, and not before"


def test_a_rollout_that_dies_while_it_loads_has_a_failed_pause(policy: Policy) -> None:
    kept, _ = play(policy, Worker("a"), Worker("b", faults=("die_at_commit",)), versions=2)
    assert [pause.failed for pause in kept.spans("pause", lane="b")] == [True]


def test_a_rollout_that_dies_in_its_pause_has_a_failed_one_and_a_leave(policy: Policy) -> None:
    workers = Worker("a"), Worker("b", faults=("die_in_the_middle",))
    kept, _ = play(policy, *workers, versions=2, staging_mib=0)
    assert [pause.failed for pause in kept.spans("pause", lane="b")] == [True]
    assert len(kept.spans("leave", lane="b")) == 1
    pauses = kept.spans("pause", lane="a")
    assert [(pause.step, pause.failed) for pause in pauses] == [(1, False), (2, False)]
    assert pauses[0].end >= kept.spans("leave", lane="b")[0].start, "it is paused until it serves"


def test_a_rollout_that_joins_again_under_its_name_leaves_first(policy: Policy) -> None:
    kept, timeline = kept_timeline()

    async def run() -> None:
        async with learner_of(policy, timeline=timeline) as learner:
            (first,) = await learner.join(Worker("a"))
            await learner.publish(1)
            (old,) = learner.fleet.members()
            second = Worker("a")
            learner.tasks.append(asyncio.create_task(second.run(learner.address)))
            await until(lambda: learner.fleet.members() not in ([], [old]))
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await asyncio.wait_for(first, 5)
            await learner.publish(2)
            assert second.version == 2

    asyncio.run(run())
    timeline.close()
    events = [x.what for x in kept.items if isinstance(x, Span) and x.lane == "a" and x.what != "pause"]
    assert events == ["join", "leave", "join", "leave"]


def test_a_killed_and_resumed_run_shows_its_steps_and_those_that_it_trains_again(
    tiny_dir: Path, tmp_path: Path, redis_url: str
) -> None:
    run_dir = tmp_path / "run"
    config = configured(tiny_dir, run_dir)
    session(config, redis_url, Script(at={"after ack 4": kill}))
    session(config, redis_url)
    lines = [json.loads(line) for line in (run_dir / FILE).read_text().splitlines() if line]
    steps = [line["step"] for line in lines if (line["what"], line["lane"]) == ("train", "learner")]
    assert steps[:4] == [1, 2, 3, 4]
    assert steps[4:] == [*range(steps[4], 7)]
    assert steps[4] in (3, 4)
    assert [line["what"] for line in lines if line["lane"] == "w"].count("join") == 2
    evaluated = [line["step"] for line in lines if line["what"] == "evaluate"]
    assert (evaluated[0], evaluated[-1]) == (0, 6)
    window = TimelineReader(run_dir).window(lines[0]["start"], lines[-1]["end"])
    trained = [bar for bar in window.bars if (bar.what, bar.lane) == ("train", "learner")]
    assert [bar.step for bar in trained] == steps
