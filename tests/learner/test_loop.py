"""The order of events in the training loop, and its ends: finished, stopped, starved, diverged, full disk."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from learner.fakes import (
    Events,
    FakeEvaluator,
    FakePublisher,
    FakeReplay,
    config_with,
    said,
    silent_log,
    step_result,
    with_teacher_logprobs,
)
from slipstream.cli.launch.history import read_history
from slipstream.learner.broadcast.snapshot import Snapshot
from slipstream.learner.checkpoints.checkpoint import CheckpointWriter, latest_checkpoint, read_state
from slipstream.learner.lockstep import Lockstep
from slipstream.learner.loop import Diverged, Loop
from slipstream.learner.policy.model import Policy
from slipstream.learner.publishing import Publishing, overlaps
from slipstream.learner.ranks.ranks import Alone
from slipstream.learner.report import Report
from slipstream.learner.saving import Saver
from slipstream.learner.starvation import Starved
from slipstream.learner.teacher import UnfitTeacher
from slipstream.learner.training.gradients import Abandoned
from slipstream.learner.training.record import StepResult
from slipstream.learner.training.step import TrainingStep
from slipstream.records import START, Group, StepTimes
from slipstream.rpc.errors import Unreachable
from slipstream.samples.timeline.writer import NO_TIMELINE, Timeline
from slipstream.samples.writer import FilteredGroup
from slipstream.telemetry.metrics import Metrics
from transformers import AutoModelForCausalLM


def stored_version(scene: "Scene") -> int:
    """The version of the run's newest checkpoint."""
    newest = latest_checkpoint(scene.run_dir / "checkpoints")
    assert newest is not None
    return read_state(newest, model_fingerprint="f").version


class FakeTraining:
    """Notes the steps; those whose version is in `bad` are not finite and change nothing."""

    def __init__(self, policy: Policy, events: Events, *, bad: Sequence[int] = ()) -> None:
        self.policy = policy
        real = TrainingStep(policy, config_with())
        self.optimizer, self.memory = real.optimizer, real.memory
        self.reference = self.critic = None
        self._events = events
        self._bad = bad

    def train(
        self,
        groups: Sequence[Group],
        *,
        version: int,
        update: Callable[[Callable[[], None]], None],
        stopped: Callable[[], bool],
        unvaried_share: float | None,
    ) -> StepResult:
        if stopped():
            raise Abandoned
        if version + 1 in self._bad:
            return step_result(bad=1, loss=float("nan"))
        self._events.append(f"train {version + 1}")
        return step_result()


class Scene:
    """A loop with fakes around it."""

    def __init__(
        self,
        policy: Policy,
        run_dir: Path,
        *overrides: str,
        batches: int = 99,
        version: int = 0,
        bad: Sequence[int] = (),
        teacher: Any = None,
        samples: Any = None,
        timeline: Timeline = NO_TIMELINE,
    ) -> None:
        self.run_dir = run_dir
        self.events = Events()
        self.log = silent_log()
        self.stop = asyncio.Event()
        self.weights = asyncio.Lock()
        self.replay = FakeReplay(self.events, batches=batches)
        self.metrics = metrics = Metrics()
        self.report = Report(run_dir, metrics)
        config = config_with(
            "learner.steps=3", "learner.checkpoint.every_steps=100", "evaluation.every_steps=0", *overrides
        )
        ranks, root = Alone(), run_dir / "checkpoints"
        training: Any = FakeTraining(policy, self.events, bad=bad)
        lockstep = Lockstep(ranks, training, Snapshot(policy, ranks), CheckpointWriter(root, ranks))
        replay: Any = self.replay
        self.publisher: Any = FakePublisher(self.events, self.weights)
        evaluator: Any = FakeEvaluator(self.events)
        self.publishing = Publishing(
            lockstep=lockstep,
            publisher=self.publisher,
            replay=replay,
            weights=self.weights,
            overlap=overlaps(config, policy.device),
            timeline=timeline,
            log=self.log,
        )
        self.loop = Loop(
            config=config,
            run_dir=run_dir,
            lockstep=lockstep,
            publishing=self.publishing,
            saver=Saver(
                root=root,
                config=config.learner.checkpoint,
                lockstep=lockstep,
                replay=replay,
                model_fingerprint="f",
                durable=version or None,
                timeline=timeline,
                metrics=metrics,
                log=self.log,
            ),
            evaluator=evaluator,
            replay=replay,
            teacher=None if teacher is None else teacher(self.events),
            report=self.report,
            samples=samples,
            timeline=timeline,
            version=version,
            cursor=START,
            unvaried_share=None,
            metrics=metrics,
            log=self.log,
        )

    def run(self) -> list[str]:
        """Run to the end; returns what happened, samples left out because they run ahead."""
        asyncio.run(asyncio.wait_for(self.loop.run(self.stop), 20))
        return self.done

    @property
    def done(self) -> list[str]:
        return [event for event in self.events if not event.startswith("sample")]

    @property
    def rows(self) -> list[dict[str, Any]]:
        text = (self.run_dir / "metrics.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]


def test_a_step_trains_acknowledges_publishes_and_only_then_announces(policy: Policy, tmp_path: Path) -> None:
    assert Scene(policy, tmp_path, "learner.steps=2").run() == [
        "evaluate 0",
        "train 1",
        "ack 0-0,0-1 as 1",
        "publish 1",
        "announce 1",
        "train 2",
        "ack 1-0,1-1 as 2",
        "publish 2",
        "announce 2",
        "confirm 2",
        "evaluate 2",
    ]


def test_a_finished_run_leaves_a_checkpoint_a_model_and_a_row(policy: Policy, tmp_path: Path) -> None:
    scene = Scene(policy, tmp_path)
    scene.run()
    checkpoint = latest_checkpoint(tmp_path / "checkpoints")
    assert checkpoint is not None
    assert read_state(checkpoint, model_fingerprint="f").version == 3
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").num_parameters() > 0
    last = scene.rows[-1]
    assert (last["event"], last["step"]) == ("finished", 3)
    assert last["loop_seconds"] >= last["idle_seconds"] >= 0
    assert sorted(read_history(tmp_path / "metrics.jsonl").steps) == [1, 2, 3]


def test_the_next_batch_is_asked_for_while_this_one_is_trained_and_none_after_the_last(
    policy: Policy, tmp_path: Path
) -> None:
    scene = Scene(policy, tmp_path)
    scene.run()
    assert scene.events.index("sample 1") < scene.events.index("ack 0-0,0-1 as 1")
    assert [event for event in scene.events if event.startswith("sample")] == [
        f"sample {v}" for v in range(3)
    ]
    assert not [event for event in scene.events if event.startswith("release")]


class FakeTeacher:
    """Reads a batch as soon as it is let, or fails."""

    def __init__(self, events: Events, *, slow: asyncio.Event | None = None, fails_at: int = -1) -> None:
        self._events = events
        self._slow = slow
        self._fails_at = fails_at

    async def teach(self, groups: Sequence[Group]) -> list[Group]:
        version = int(groups[0].group_id.split("-")[0])
        self._events.note(f"teach {version}")
        if version == self._fails_at:
            raise UnfitTeacher("another vocabulary")
        if self._slow is not None:
            await self._slow.wait()
        return with_teacher_logprobs(groups, top_k=0)


def test_a_teacher_reads_the_next_batch_while_this_one_is_trained(policy: Policy, tmp_path: Path) -> None:
    scene = Scene(policy, tmp_path, teacher=FakeTeacher)
    scene.run()
    for version in (1, 2):
        assert scene.events.index(f"teach {version}") < scene.events.index(f"publish {version}")
        assert scene.events.index(f"teach {version}") < scene.events.index(f"train {version + 1}")
    assert not [event for event in scene.events if event.startswith("release")]
    waits = scene.metrics.registry.get_sample_value("slipstream_wait_seconds_count", {"what": "teacher"})
    assert waits == 3


class FakeSamples:
    """Notes what a step has the run store."""

    def __init__(self) -> None:
        self.put_in: list[tuple[int, list[str], list[str]]] = []
        self.times: list[StepTimes] = []

    def take_all(self) -> None:
        pass

    def put(
        self,
        step: int,
        groups: Sequence[Group],
        values: object,
        *,
        filtered: Sequence[FilteredGroup],
        times: StepTimes | None = None,
    ) -> bool:
        if times is not None:
            self.times.append(times)
        self.put_in.append((step, [group.group_id for group in groups], [each.reason for each in filtered]))
        return True


def test_each_step_stores_its_batch_and_what_was_filtered_since_the_step_before(
    policy: Policy, tmp_path: Path
) -> None:
    samples = FakeSamples()
    scene = Scene(policy, tmp_path, samples=samples)
    scene.replay.filtered = [[FilteredGroup(payload=b"", reason="equal")], [], []]
    scene.run()
    assert samples.put_in == [
        (1, ["0-0", "0-1"], ["equal"]),
        (2, ["1-0", "1-1"], []),
        (3, ["2-0", "2-1"], []),
    ]


def test_what_is_filtered_after_the_last_step_is_stored_with_it_once_the_run_ends(
    policy: Policy, tmp_path: Path
) -> None:
    samples = FakeSamples()
    scene = Scene(policy, tmp_path, samples=samples)
    scene.replay.filtered = [[], [], [], [FilteredGroup(payload=b"", reason="equal")]]
    scene.run()
    assert [step for step, _, _ in samples.put_in] == [1, 2, 3, 3]
    assert samples.put_in[-1] == (3, [], ["equal"])


def test_a_run_that_is_stopped_leaves_the_filtered_groups_to_the_next_learner(
    policy: Policy, tmp_path: Path
) -> None:
    samples = FakeSamples()
    scene = Scene(policy, tmp_path, "learner.steps=50", batches=2, samples=samples)
    scene.replay.filtered = [[], [], [FilteredGroup(payload=b"", reason="equal")]]

    async def run() -> None:
        running = asyncio.create_task(scene.loop.run(scene.stop))
        await scene.events.wait_for("announce 2")
        scene.stop.set()
        await asyncio.wait_for(running, 20)

    asyncio.run(run())
    assert [step for step, _, _ in samples.put_in] == [1, 2]


def test_filtered_groups_that_an_abandoned_step_took_are_stored_with_the_step_before(
    policy: Policy, tmp_path: Path
) -> None:
    samples = FakeSamples()
    scene = Scene(policy, tmp_path, "learner.least_step_seconds=30", version=2, samples=samples)
    scene.replay.filtered = [[FilteredGroup(payload=b"", reason="equal")]]

    async def run() -> None:
        running = asyncio.create_task(scene.loop.run(scene.stop))
        await scene.events.wait_for("sample 2")
        await asyncio.sleep(0.1)  # the step has begun, and lasts
        assert not scene.replay.filtered
        scene.stop.set()
        await asyncio.wait_for(running, 10)

    asyncio.run(run())
    assert samples.put_in == [(2, [], ["equal"])]


def test_a_step_trains_although_its_filtered_groups_do_not_arrive(policy: Policy, tmp_path: Path) -> None:
    samples = FakeSamples()
    scene = Scene(policy, tmp_path, samples=samples)
    scene.replay.away.add("take_filtered")
    scene.run()
    assert [step for step, _, _ in samples.put_in] == [1, 2, 3]
    assert "filtered groups are not stored" in said(scene.log)


def test_no_step_waits_for_filtered_groups_and_late_ones_are_stored(policy: Policy, tmp_path: Path) -> None:
    samples = FakeSamples()
    scene = Scene(policy, tmp_path, samples=samples)
    scene.replay.filtered = [[FilteredGroup(payload=b"", reason="equal")]]
    scene.replay.filtered_come.clear()

    async def run() -> None:
        running = asyncio.create_task(scene.loop.run(scene.stop))
        await scene.events.wait_for("train 3")
        scene.replay.filtered_come.set()
        await asyncio.wait_for(running, 10)

    asyncio.run(run())
    assert [filtered for step, _, filtered in samples.put_in if step < 3] == [[], []]
    assert [filtered for step, _, filtered in samples.put_in if step == 3 and filtered] == [["equal"]]


def test_a_run_without_a_teacher_waits_for_none(policy: Policy, tmp_path: Path) -> None:
    scene = Scene(policy, tmp_path)
    scene.run()
    waits = scene.metrics.registry.get_sample_value("slipstream_wait_seconds_count", {"what": "teacher"})
    assert waits is None


def test_a_stop_while_the_teacher_reads_puts_the_batch_back(policy: Policy, tmp_path: Path) -> None:
    never = asyncio.Event()
    scene = Scene(policy, tmp_path, teacher=lambda events: FakeTeacher(events, slow=never))

    async def stop_soon() -> None:
        running = asyncio.create_task(scene.loop.run(scene.stop))
        await scene.events.wait_for("teach 0")
        scene.stop.set()
        await asyncio.wait_for(running, 20)

    asyncio.run(stop_soon())
    assert [event for event in scene.done if event.startswith(("release", "train"))] == ["release 0-0,0-1"]


def test_a_teacher_that_cannot_read_ends_the_run_with_a_checkpoint(policy: Policy, tmp_path: Path) -> None:
    scene = Scene(policy, tmp_path, teacher=lambda events: FakeTeacher(events, fails_at=1))
    with pytest.raises(UnfitTeacher, match="another vocabulary"):
        scene.run()
    assert stored_version(scene) == 1
    assert "release 1-0,1-1" in scene.events


def test_checkpoints_and_evaluations_come_at_their_steps(policy: Policy, tmp_path: Path) -> None:
    happened = Scene(
        policy, tmp_path, "learner.steps=5", "learner.checkpoint.every_steps=2", "evaluation.every_steps=2"
    ).run()
    evaluations = [event for event in happened if event.split()[0] in ("begin", "evaluate")]
    assert evaluations == ["evaluate 0", "begin evaluation 2", "begin evaluation 4", "evaluate 5"]
    assert [e for e in happened if e.startswith("confirm")] == ["confirm 2", "confirm 4", "confirm 5"]
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["step_00000004", "step_00000005"]


def test_the_row_after_a_checkpoint_has_the_seconds_for_which_it_held_training(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Lockstep.begin_checkpoint

    async def slow(self: Lockstep, state: Any) -> None:
        await asyncio.sleep(0.2)
        await begin(self, state)

    monkeypatch.setattr(Lockstep, "begin_checkpoint", slow)
    scene = Scene(policy, tmp_path, "learner.steps=4", "learner.checkpoint.every_steps=2")
    scene.run()
    seconds = [row["checkpoint_seconds"] for row in scene.rows if row["event"] == "step"]
    assert seconds[:2] == [0, 0]
    assert seconds[2] >= 0.2
    assert seconds[3] == 0


def test_a_row_has_the_seconds_for_which_its_update_waited_for_a_copy(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lockstep, "copy_wait_seconds", lambda lockstep: 0.125)
    scene = Scene(policy, tmp_path, "learner.steps=2")
    scene.run()
    assert [row["copy_wait_seconds"] for row in scene.rows if row["event"] == "step"] == [0.125] * 2


def test_a_stop_in_the_middle_gives_the_prefetched_batch_back_and_makes_a_checkpoint(
    policy: Policy, tmp_path: Path
) -> None:
    scene = Scene(policy, tmp_path, "learner.steps=50", batches=3)

    async def run() -> None:
        running = asyncio.create_task(scene.loop.run(scene.stop))
        await scene.events.wait_for("ack 1-0,1-1 as 2")
        await scene.events.wait_for("sample 2")
        scene.stop.set()
        await asyncio.wait_for(running, 10)

    asyncio.run(run())
    assert "release 2-0,2-1" in scene.done or "ack 2-0,2-1 as 3" in scene.done
    assert scene.done[-1] == f"confirm {scene.loop.version}"
    assert (scene.rows[-1]["event"], scene.rows[-1]["step"]) == ("interrupted", scene.loop.version)
    assert not (tmp_path / "model").exists()


def test_a_next_batch_that_cannot_be_read_is_logged_when_the_run_is_stopped(
    policy: Policy, tmp_path: Path
) -> None:
    scene = Scene(policy, tmp_path, "learner.steps=50", batches=2)
    sample = scene.replay.sample

    async def broken(version: int, *, groups: int | None = None) -> list[Group]:
        if version == 2:
            scene.stop.set()
            raise ValueError("group 7 has no tokens")
        return await sample(version)

    scene.replay.sample = broken  # type: ignore[method-assign]
    scene.run()
    assert 'next batch not fetched error="ValueError: group 7 has no tokens"' in said(scene.log)
    assert scene.done[-1] == f"confirm {scene.loop.version}"


def test_a_stop_while_waiting_for_a_batch_ends_at_once(policy: Policy, tmp_path: Path) -> None:
    scene = Scene(policy, tmp_path, batches=1)

    async def run() -> None:
        running = asyncio.create_task(scene.loop.run(scene.stop))
        await scene.events.wait_for("announce 1")
        scene.stop.set()
        await asyncio.wait_for(running, 5)

    asyncio.run(run())
    assert scene.done[-2:] == ["announce 1", "confirm 1"]


def test_a_stop_before_the_start_trains_nothing(policy: Policy, tmp_path: Path) -> None:
    scene = Scene(policy, tmp_path)
    scene.stop.set()
    assert scene.run() == ["confirm 0"]


def test_no_batch_within_the_deadline_is_an_error_that_says_what_the_workers_did(
    policy: Policy, tmp_path: Path
) -> None:
    scene = Scene(policy, tmp_path, "learner.sample_timeout_seconds=0.1", batches=1)
    message = (
        r"no batch of 2 groups within 0.1 s \(learner.sample_timeout_seconds\): .*3 groups were handed in; "
        r".*no rollout was ever heard from: is one running\?; no actor was ever heard from: is one running\?"
    )
    with pytest.raises(Starved, match=message):
        scene.run()
    assert scene.done[-2:] == ["announce 1", "confirm 1"]


def test_the_first_batch_has_the_time_of_an_engines_start_too(policy: Policy, tmp_path: Path) -> None:
    waits = ("learner.sample_timeout_seconds=0.1", "rollout.start_timeout_seconds=30")
    scene = Scene(policy, tmp_path, *waits, "learner.steps=1", batches=0)

    async def run() -> None:
        running = asyncio.create_task(scene.loop.run(scene.stop))
        await asyncio.sleep(0.5)
        scene.replay.left = 1
        await asyncio.wait_for(running, 10)

    asyncio.run(run())
    assert scene.loop.version == 1


def test_a_first_batch_that_does_not_come_names_both_bounds(policy: Policy, tmp_path: Path) -> None:
    waits = ("learner.sample_timeout_seconds=0.1", "rollout.start_timeout_seconds=0.2")
    message = r"within 0\.3\d* s \(learner.sample_timeout_seconds \+ rollout.start_timeout_seconds\)"
    with pytest.raises(Starved, match=message):
        Scene(policy, tmp_path, *waits, batches=0).run()


def test_the_deadline_for_a_batch_does_not_run_while_the_last_one_is_trained(
    policy: Policy, tmp_path: Path
) -> None:
    timeout = "learner.sample_timeout_seconds=0.3"
    scene = Scene(policy, tmp_path, timeout, "learner.least_step_seconds=0.5", "learner.steps=2", batches=1)

    async def run() -> None:
        running = asyncio.create_task(scene.loop.run(scene.stop))
        await scene.events.wait_for("announce 1")
        scene.replay.left = 1
        await asyncio.wait_for(running, 10)

    asyncio.run(run())
    assert scene.loop.version == 2


def test_a_step_that_is_given_up_puts_its_batch_back_and_leaves_a_checkpoint(
    policy: Policy, tmp_path: Path
) -> None:
    scene = Scene(policy, tmp_path, "learner.least_step_seconds=30", version=2)

    async def run() -> None:
        running = asyncio.create_task(scene.loop.run(scene.stop))
        await scene.events.wait_for("sample 2")
        scene.stop.set()
        await asyncio.wait_for(running, 10)

    asyncio.run(run())
    assert scene.loop.version == 2
    assert not [event for event in scene.done if event.startswith(("train", "ack"))]


def test_steps_in_a_row_that_are_not_finite_end_the_run_and_their_batch_goes_back(
    policy: Policy, tmp_path: Path
) -> None:
    scene = Scene(policy, tmp_path, "learner.steps=9", "learner.max_bad_steps=2", bad=(1, 3, 4))
    with pytest.raises(Diverged, match="2 steps in a row were not finite; version 3 is still served"):
        scene.run()
    assert "publish 3" in scene.done
    assert "release 3-0,3-1" in scene.done
    assert "ack 3-0,3-1 as 4" not in scene.done
    assert said(scene.log).count("step was not finite and changed nothing") == 3


def test_a_full_disk_at_a_checkpoint_keeps_the_run_going(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    scene = Scene(policy, tmp_path, "learner.checkpoint.every_steps=1")
    with pytest.raises(OSError, match="there is no checkpoint of step 3; make room, and resume the run"):
        scene.run()
    assert "announce 3" in scene.done
    assert not [event for event in scene.done if event.startswith("confirm")]
    assert said(scene.log).count("checkpoint not written; the last one stays") >= 3


def test_without_replay_the_run_ends_with_that_error_and_a_checkpoint(policy: Policy, tmp_path: Path) -> None:
    scene = Scene(policy, tmp_path, version=2)
    scene.replay.away = {"sample", "confirm"}
    with pytest.raises(Unreachable, match="sample: nobody there"):
        scene.run()
    assert said(scene.log).count("checkpoint not confirmed; the next one will be") == 0
    scene = Scene(policy, tmp_path / "later", "learner.steps=9", batches=2)
    scene.replay.away = {"announce", "confirm"}
    with pytest.raises(Unreachable, match="announce: nobody there"):
        scene.run()
    assert stored_version(scene) == 1
    assert said(scene.log).count("checkpoint not confirmed; the next one will be") == 1


def test_a_replay_that_goes_while_the_run_is_stopped_is_no_error(policy: Policy, tmp_path: Path) -> None:
    scene = Scene(policy, tmp_path, "learner.least_step_seconds=0.3", "learner.steps=9")

    async def run() -> None:
        running = asyncio.create_task(scene.loop.run(scene.stop))
        await scene.events.wait_for("announce 1")
        await asyncio.sleep(0.1)
        scene.replay.away = {"release", "confirm"}
        scene.stop.set()
        await asyncio.wait_for(running, 10)

    asyncio.run(run())
    assert stored_version(scene) == scene.loop.version == 1
    assert "stopped without replay" in said(scene.log)


def test_weights_whose_step_replay_has_not_heard_of_are_not_saved(policy: Policy, tmp_path: Path) -> None:
    scene = Scene(policy, tmp_path)
    scene.replay.away = {"ack"}
    with pytest.raises(Unreachable, match="ack: nobody there"):
        scene.run()
    assert latest_checkpoint(tmp_path / "checkpoints") is None


def test_a_resumed_run_starts_at_the_version_of_its_checkpoint(policy: Policy, tmp_path: Path) -> None:
    scene = Scene(policy, tmp_path, version=2)
    assert scene.run() == [
        "train 3",
        "ack 2-0,2-1 as 3",
        "publish 3",
        "announce 3",
        "confirm 3",
        "evaluate 3",
    ]
    assert "sample 2" in scene.events


def test_the_version_that_is_trained_is_shown_before_it_is_published(policy: Policy, tmp_path: Path) -> None:
    scene = Scene(policy, tmp_path, version=1)
    shown: list[float | None] = []
    publish = scene.publisher.publish

    async def publishing(version: int) -> Any:
        shown.append(scene.metrics.registry.get_sample_value("slipstream_trained_version"))
        return await publish(version)

    scene.publisher.publish = publishing
    assert scene.metrics.registry.get_sample_value("slipstream_trained_version") == 1
    scene.run()
    assert shown == [2, 3]


def test_a_resumed_run_that_is_stopped_at_once_leaves_its_checkpoint_alone(
    policy: Policy, tmp_path: Path
) -> None:
    scene = Scene(policy, tmp_path, version=2)
    scene.stop.set()
    assert scene.run() == []
    assert not (tmp_path / "checkpoints").exists()


def test_with_overlap_the_next_step_trains_while_a_version_is_on_its_way(
    policy: Policy, tmp_path: Path
) -> None:
    scene = Scene(policy, tmp_path, "weights.overlap=true", "learner.steps=2")
    scene.publisher.slow = asyncio.Event()

    async def run() -> None:
        running = asyncio.create_task(scene.loop.run(scene.stop))
        await scene.events.wait_for("train 2")
        assert "announce 1" not in scene.events
        assert scene.weights.locked()
        scene.publisher.slow.set()
        await asyncio.wait_for(running, 10)

    asyncio.run(run())
    order = [scene.done.index(event) for event in ("train 2", "announce 1", "publish 2", "announce 2")]
    assert order == sorted(order)
    assert not scene.weights.locked()


def test_without_overlap_a_version_is_announced_before_the_next_step(policy: Policy, tmp_path: Path) -> None:
    done = Scene(policy, tmp_path, "weights.overlap=false", "learner.steps=2").run()
    assert done.index("announce 1") < done.index("train 2")


def test_publishing_overlaps_where_a_core_is_to_spare() -> None:
    cpu = torch.device("cpu")
    many = config_with("learner.threads=100000")
    assert not overlaps(many, cpu)
    assert overlaps(many, torch.device("cuda"))
    assert overlaps(config_with("learner.threads=100000", "weights.overlap=true"), cpu)


def test_what_fails_beside_training_ends_the_run_at_once_with_its_own_error(
    policy: Policy, tmp_path: Path
) -> None:
    scene = Scene(policy, tmp_path, "weights.overlap=true", "learner.sample_timeout_seconds=60", batches=1)
    scene.publisher.slow = asyncio.Event()
    scene.publisher.failure = RuntimeError("the broadcast failed")

    async def run() -> None:
        running = asyncio.create_task(scene.loop.run(scene.stop))
        await scene.events.wait_for("publish 1")
        scene.publisher.slow.set()
        await asyncio.wait_for(running, 10)

    with pytest.raises(RuntimeError, match="the broadcast failed"):
        asyncio.run(run())


def test_the_last_checkpoint_does_not_wait_for_the_last_broadcast(policy: Policy, tmp_path: Path) -> None:
    scene = Scene(policy, tmp_path, "weights.overlap=true", "learner.steps=1")
    scene.publisher.slow = asyncio.Event()

    async def run() -> None:
        running = asyncio.create_task(scene.loop.run(scene.stop))
        await scene.events.wait_for("confirm 1")
        assert "announce 1" not in scene.events
        scene.publisher.slow.set()
        await asyncio.wait_for(running, 10)

    asyncio.run(run())
    assert "announce 1" in scene.events
