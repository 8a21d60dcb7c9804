"""A paused run does not starve, and a checkpoint is written when somebody requests it."""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from learner.fakes import Events, FakeReplay, said, silent_log
from learner.test_loop import Scene, stored_version
from slipstream.config import RpcConfig
from slipstream.learner import starvation
from slipstream.learner.broadcast.fleet import Fleet
from slipstream.learner.checkpoints.checkpoint import CheckpointWriter
from slipstream.learner.policy.model import Policy
from slipstream.learner.save_requests import SaveRequests
from slipstream.learner.saving import NotSaved
from slipstream.learner.starvation import StarvationReport, Starved, describe
from slipstream.parallel import beside
from slipstream.records import START, Activity, Admission, Ledger
from slipstream.rpc.channel import open_channel
from slipstream.rpc.server import start_server
from slipstream.telemetry.metrics import Metrics
from slipstream.v1 import learner_pb2 as pb
from slipstream.v1.learner_pb2_grpc import FleetStub, add_FleetServicer_to_server

PAUSED = Admission(paused=True, seconds=5.0, since=0.0, by="anna", reason="new disk")
SHORT = "learner.sample_timeout_seconds=0.2"


class AdmissionOfNow:
    """Replay as the report of a wait sees it; a change counts its seconds from the moment it is made."""

    def __init__(self) -> None:
        self._paused = False
        self._at = time.monotonic() - 1000

    def set(self, *, paused: bool) -> None:
        self._paused, self._at = paused, time.monotonic()

    async def activity(self) -> Activity:
        seconds = time.monotonic() - self._at
        return Activity(admission=Admission(paused=self._paused, seconds=seconds, by="anna"))


def play(scene: Scene, life: Callable[["asyncio.Task[None]"], Awaitable[None]]) -> None:
    """Run the loop, and `life` beside it; then stop the loop."""

    async def run() -> None:
        running = asyncio.create_task(scene.loop.run(scene.stop))
        await life(running)
        scene.stop.set()
        await asyncio.wait_for(running, 60)

    asyncio.run(run())


def test_a_paused_run_waits_beyond_its_deadline_and_trains_when_it_goes_on(
    policy: Policy, tmp_path: Path
) -> None:
    scene = Scene(policy, tmp_path, SHORT, "learner.steps=2", batches=1)

    async def life(running: "asyncio.Task[None]") -> None:
        await scene.events.wait_for("announce 1")
        scene.replay.admission = PAUSED
        await asyncio.sleep(0.7)
        assert not running.done()
        scene.replay.admission, scene.replay.left = Admission(seconds=0.0), 1
        await asyncio.wait_for(running, 60)

    play(scene, life)
    assert scene.loop.version == 2


def test_a_paused_run_ends_at_once_when_it_is_stopped(policy: Policy, tmp_path: Path) -> None:
    scene = Scene(policy, tmp_path, SHORT, batches=1)
    scene.replay.admission = PAUSED

    async def life(running: "asyncio.Task[None]") -> None:
        await scene.events.wait_for("announce 1")
        await asyncio.sleep(0.5)

    play(scene, life)
    assert stored_version(scene) == 1


def test_a_run_starves_when_no_batch_comes_for_the_whole_deadline_after_a_pause() -> None:
    replay, log = AdmissionOfNow(), silent_log()
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            replay.set(paused=True)
        elif len(waits) == 3:
            replay.set(paused=False)
            await asyncio.sleep(0.1)
        elif len(waits) == 4:
            await asyncio.sleep(0.5)
        raise TimeoutError

    report = StarvationReport(replay, log, say=lambda line: None)
    with pytest.raises(TimeoutError):
        asyncio.run(report.outlast_pauses(wait, 0.5))
    assert waits[:3] == [0.5, 0.5, 0.5], "paused: the deadline begins again"
    assert 0.2 < waits[3] < 0.41, "what is left of the deadline since the pause ended"
    assert len(waits) == 4


def test_a_replay_that_is_started_again_during_a_pause_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(starvation, "LOOK_SECONDS", 0.01)
    replay = FakeReplay(Events(), batches=0)
    replay.admission = PAUSED
    waits = 0

    async def wait(seconds: float) -> str:
        nonlocal waits
        waits += 1
        if waits == 1:
            await asyncio.sleep(0.1)  # the pause is noticed
            replay.away = {"activity"}
        if waits < 3:
            raise TimeoutError
        return "a batch"

    async def run() -> str:
        report = StarvationReport(replay, silent_log(), say=lambda line: None)
        async with beside(report.watch()):
            return await report.outlast_pauses(wait, 0.5)

    assert asyncio.run(run()) == "a batch"


def test_a_run_that_nobody_has_paused_starves_at_its_deadline(policy: Policy, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(Starved, match=r"within 0.2 s \(learner.sample_timeout_seconds\)"):
        Scene(policy, tmp_path, SHORT, "rollout.start_timeout_seconds=1", batches=1).run()
    assert time.monotonic() - began < 10


def test_a_pause_and_its_end_are_logged_and_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starvation, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(starvation, "TELL_SECONDS", 0.02)
    replay, log = FakeReplay(Events(), batches=0), silent_log()
    lines: list[str] = []

    async def watch() -> None:
        report = StarvationReport(replay, log, say=lines.append)
        watching = asyncio.create_task(report.watch())
        replay.admission = PAUSED
        await asyncio.sleep(0.2)
        assert "no batch yet" not in said(log), "a pause is no starvation"
        replay.admission = Admission(by="ben")
        await asyncio.sleep(0.2)
        watching.cancel()

    asyncio.run(watch())
    assert lines == ["paused by anna: new disk", "resumed by ben"]
    assert said(log).count('paused by=anna reason="new disk"') == 1
    assert said(log).count("resumed by=ben") == 1
    assert "no batch yet" in said(log).partition("resumed by=ben")[2]


def test_the_reason_why_no_batch_comes_names_the_pause() -> None:
    assert "paused by anna: new disk" in describe(Ledger(), Activity(admission=PAUSED))
    assert "paused" not in describe(Ledger(), Activity(admission=Admission(by="anna", seconds=1.0)))


def test_a_request_while_the_learner_waits_is_saved_at_once(policy: Policy, tmp_path: Path) -> None:
    scene = Scene(policy, tmp_path, batches=1)
    scene.replay.admission = PAUSED

    async def life(running: "asyncio.Task[None]") -> None:
        await scene.events.wait_for("announce 1")
        assert await asyncio.wait_for(scene.loop.save(), 5) == 1
        assert stored_version(scene) == 1
        assert not running.done()

    play(scene, life)


def test_a_request_during_a_step_is_saved_after_this_step(policy: Policy, tmp_path: Path) -> None:
    scene = Scene(policy, tmp_path, "learner.least_step_seconds=0.4", "learner.steps=99")

    async def life(running: "asyncio.Task[None]") -> None:
        await scene.events.wait_for("sample 0")
        await asyncio.sleep(0.1)  # the step has begun, and lasts
        assert "train 1" not in scene.events
        assert await asyncio.wait_for(scene.loop.save(), 5) == 1
        assert "train 2" not in scene.events

    play(scene, life)
    assert "confirm 1" in scene.events


def test_a_request_for_a_version_that_is_durable_writes_nothing(policy: Policy, tmp_path: Path) -> None:
    scene = Scene(policy, tmp_path, batches=1)

    async def life(running: "asyncio.Task[None]") -> None:
        await scene.events.wait_for("announce 1")
        assert await scene.loop.save() == 1
        shutil.rmtree(tmp_path / "checkpoints")
        assert await scene.loop.save() == 1
        assert not (tmp_path / "checkpoints").exists()

    play(scene, life)


def test_requests_at_the_same_time_share_a_checkpoint_that_outlives_them() -> None:
    begun = 0

    async def run() -> None:
        nonlocal begun
        go, requests = asyncio.Event(), SaveRequests(silent_log())

        async def save() -> int:
            nonlocal begun
            begun += 1
            await go.wait()
            return 7

        requests.serve(save)
        calls = [asyncio.create_task(requests.save()) for _ in range(3)]
        await asyncio.sleep(0.01)
        calls[0].cancel()
        await asyncio.sleep(0.01)
        go.set()
        assert await asyncio.gather(*calls[1:]) == [7, 7]
        assert begun == 1
        assert await requests.save() == 7
        assert begun == 2, "a later request is one of its own"

    asyncio.run(run())


def test_requests_are_refused_after_training_and_one_that_is_served_is_waited_for() -> None:
    async def run() -> None:
        go, requests = asyncio.Event(), SaveRequests(silent_log())

        async def save() -> int:
            await go.wait()
            return 7

        requests.serve(save)
        served = asyncio.create_task(requests.save())
        await asyncio.sleep(0.01)
        ending = asyncio.create_task(requests.end())
        await asyncio.sleep(0.01)
        assert not ending.done()
        with pytest.raises(NotSaved, match="training has ended"):
            await requests.save()
        go.set()
        await asyncio.wait_for(ending, 5)
        assert await served == 7

    asyncio.run(run())


def test_a_request_that_cannot_be_written_says_why_and_a_later_one_may_succeed(
    policy: Policy, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    scene = Scene(policy, tmp_path, "learner.checkpoint.every_steps=1", batches=1)

    async def life(running: "asyncio.Task[None]") -> None:
        await scene.events.wait_for("announce 1")
        with pytest.raises(NotSaved, match=r"checkpoint of step 1 was not written: .*; there is none yet"):
            await scene.loop.save()
        (tmp_path / "checkpoints").unlink()
        assert await scene.loop.save() == 1

    play(scene, life)
    assert stored_version(scene) == 1


def break_one_publication(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first checkpoint fail with an error that is not one of the disk."""
    publish = CheckpointWriter._publish

    def broken(writer: CheckpointWriter, version: int) -> Path:
        monkeypatch.setattr(CheckpointWriter, "_publish", publish)
        raise RuntimeError("broken")

    monkeypatch.setattr(CheckpointWriter, "_publish", broken)


def test_a_requested_checkpoint_that_fails_is_written_again_when_the_run_is_stopped(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(policy, tmp_path, batches=1)
    break_one_publication(monkeypatch)

    async def life(running: "asyncio.Task[None]") -> None:
        await scene.events.wait_for("announce 1")
        with pytest.raises(RuntimeError, match="broken"):
            await scene.loop.save()

    play(scene, life)
    assert stored_version(scene) == 1


def test_a_save_and_a_request_that_share_a_checkpoint_both_learn_why_it_failed(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = Scene(policy, tmp_path).loop._saver
    break_one_publication(monkeypatch)

    async def run() -> None:
        saving = asyncio.create_task(saver.save(1, START, None))
        request = asyncio.create_task(saver.durable_since(1))
        await asyncio.wait([saving, request])
        with pytest.raises(RuntimeError, match="broken"):
            saving.result()
        with pytest.raises(NotSaved, match="step 1 was not written: RuntimeError: broken; there is none yet"):
            request.result()

    asyncio.run(run())


def test_a_save_that_waits_for_a_request_writes_what_the_request_could_not(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = Scene(policy, tmp_path).loop._saver
    break_one_publication(monkeypatch)

    async def run() -> None:
        await saver.begin(1, START, None)
        request = asyncio.create_task(saver.durable_since(1))
        saving = asyncio.create_task(saver.save(1, START, None))
        await asyncio.wait([saving, request])
        with pytest.raises(RuntimeError, match="broken"):
            request.result()
        saving.result()
        assert saver.durable == 1

    asyncio.run(run())


def test_weights_of_a_step_that_failed_are_not_saved(policy: Policy, tmp_path: Path) -> None:
    scene = Scene(policy, tmp_path, "learner.least_step_seconds=0.2")
    scene.replay.away = {"ack"}

    async def run() -> None:
        running = asyncio.create_task(scene.loop.run(scene.stop))
        await scene.events.wait_for("sample 0")
        await asyncio.sleep(0.05)
        request = asyncio.create_task(scene.loop.save())
        await asyncio.wait([running, request])
        with pytest.raises(NotSaved, match="the last step failed"):
            request.result()
        assert running.exception() is not None

    asyncio.run(run())
    assert not list((tmp_path / "checkpoints").glob("step_*"))


def test_the_fleet_answers_with_the_version_or_the_reason() -> None:
    async def run() -> None:
        metrics, log = Metrics(), silent_log()
        fleet = Fleet(model_fingerprint="f", backend="gloo", metrics=metrics, log=log)
        server = await start_server(
            "127.0.0.1:0", lambda s: add_FleetServicer_to_server(fleet, s), config=RpcConfig(), log=log
        )
        async with open_channel(server.address, RpcConfig()) as channel:
            stub: Any = FleetStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.SaveCheckpoint(pb.SaveCheckpointRequest(), timeout=5)
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "no checkpoint to write: it is loading" in str(caught.value.details())

            async def save() -> int:
                return 12

            fleet.saves.serve(save)
            assert (await stub.SaveCheckpoint(pb.SaveCheckpointRequest(), timeout=5)).version == 12
        await server.stop(grace=0)

    asyncio.run(run())
