"""A worker serves verified versions only, and comes back to the fleet whatever happens to its stream."""

import asyncio
import io
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import grpc
import pytest
import torch
from rollout.fakes import FakeEngine, FakeLearner, Stream, metric, scenario, served_by, small_config, until
from slipstream.rollout.engine import EngineDied
from slipstream.rollout.fleet import FleetMember, Identity, Refused
from slipstream.rpc.channel import open_channel
from slipstream.rpc.server import start_server
from slipstream.served_version import ServedVersion
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.v1 import learner_pb2 as pb
from slipstream.v1.learner_pb2_grpc import add_FleetServicer_to_server
from slipstream.weights.group import TransferError
from slipstream.weights.manifest import manifest_to_proto, plan

MANIFEST = manifest_to_proto(
    plan([("w", (4,))], dtype=torch.float32, bucket_bytes=64, model_fingerprint="print")
)

BEGIN = partial(pb.Begin, manifest=MANIFEST, base_version=-1)
"""Begin of a full version."""
STAGED = sum(MANIFEST.bucket_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker in the fleet of a fake learner whose messages the test sends."""

    engine: FakeEngine
    learner: FakeLearner
    served: ServedVersion
    metrics: Metrics
    running: asyncio.Task[None]

    @property
    def serving(self) -> tuple[bool, int]:
        return self.served.serving, self.served.version


def member(
    engine: FakeEngine,
    served: ServedVersion,
    metrics: Metrics,
    log: Log | None = None,
    *,
    staging_bytes: int = 0,
) -> FleetMember:
    return FleetMember(
        engine=engine,
        identity=Identity(worker_id="w", model_fingerprint="print", backend="gloo", ranks=2),
        served=served,
        metrics=metrics,
        log=log or Log(pod="w"),
        staging_bytes=staging_bytes,
        parity_bound=0.5,
        rejoin_seconds=0.05,
    )


@asynccontextmanager
async def start_worker(
    learner: FakeLearner | None = None, *, staging_bytes: int = 0
) -> AsyncIterator[Worker]:
    learner, engine, served, metrics = learner or FakeLearner(), FakeEngine(), ServedVersion(), Metrics()
    async with served_by(partial(add_FleetServicer_to_server, learner), small_config()) as channel:
        started = member(engine, served, metrics, staging_bytes=staging_bytes)
        running = asyncio.create_task(started.run(channel))
        try:
            yield Worker(engine=engine, learner=learner, served=served, metrics=metrics, running=running)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def prepare(
    stream: Stream, *, version: int, epoch: int = 1, sender: bytes = b"learner", timeout_seconds: float = 6
) -> None:
    stream.tell(
        prepare=pb.Prepare(
            epoch=epoch,
            version=version,
            rank=3,
            world_size=5,
            store_host="host",
            store_port=1234,
            rendezvous_nonce=b"n" * 32,
            timeout_seconds=timeout_seconds,
            sender=sender,
        )
    )


async def begin(stream: Stream, *, version: int, epoch: int = 1) -> None:
    """Prepare an update, and tell the worker to receive it."""
    prepare(stream, version=version, epoch=epoch)
    assert await stream.answer() == ("ready", pb.Ready(epoch=epoch, version=version, base_version=-1))
    stream.tell(begin=BEGIN(epoch=epoch, version=version))


async def update(stream: Stream, *, version: int, epoch: int = 1) -> pb.Serving:
    """Run a whole update with the messages of the publisher."""
    await begin(stream, version=version, epoch=epoch)
    kind, applied = await stream.answer()
    assert (kind, applied.epoch, applied.version) == ("applied", epoch, version)
    stream.tell(commit=pb.Commit(version=version))
    kind, serving = await stream.answer()
    assert (kind, serving.version) == ("serving", version)
    return serving


async def fail(
    worker: Worker, stream: Stream, *, version: int, epoch: int = 1, call: str = "receive"
) -> pb.Failed:
    """Run an update whose transfer fails in the engine."""
    worker.engine.fail(call, TransferError("bucket 0 arrived damaged"))
    await begin(stream, version=version, epoch=epoch)
    kind, failed = await stream.answer()
    assert kind == "failed"
    return failed


@scenario
async def test_a_worker_joins_with_its_identity_and_serves_the_version_it_received() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        assert worker.engine.warm
        assert stream.join == pb.JoinFleet(
            worker_id="w",
            model_fingerprint="print",
            backend="gloo",
            ranks=2,
            serving_version=-1,
            answers_pings=True,
        )
        assert worker.serving == (False, -1)
        await update(stream, version=7)
        assert worker.serving == (True, 7)
        assert worker.engine.events == ["form_group", "pause", "receive", "commit", "resume"]
        (rendezvous,) = worker.engine.rendezvous
        assert (rendezvous.rank, rendezvous.world_size, rendezvous.store_port) == (3, 5, 1234)
        assert rendezvous.nonce == b"n" * 32
        assert metric(worker.metrics, "version_served") == 7


@scenario
async def test_a_worker_joins_although_its_engine_cannot_warm_up() -> None:
    learner, engine, output = FakeLearner(), FakeEngine(), io.StringIO()
    engine.fail("warm_up", TransferError("ImportError: no numba"))
    async with served_by(partial(add_FleetServicer_to_server, learner), small_config()) as channel:
        started = member(engine, ServedVersion(), Metrics(), Log(pod="w", stream=output))
        running = asyncio.create_task(started.run(channel))
        await update(await learner.joined(), version=7)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert "ImportError: no numba" in output.getvalue()


@scenario
async def test_an_engine_that_hangs_before_it_joins_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.rollout.fleet.ENGINE_SECONDS", 0.05)
    engine = FakeEngine()
    monkeypatch.setattr(engine, "warm_up", asyncio.Event().wait)
    async with served_by(partial(add_FleetServicer_to_server, FakeLearner()), small_config()) as channel:
        with pytest.raises(EngineDied, match="did not answer in"):
            await member(engine, ServedVersion(), Metrics()).run(channel)


@scenario
async def test_prepare_is_answered_while_still_generating() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        await update(stream, version=0)
        worker.engine.events.clear()
        prepare(stream, version=1)
        assert (await stream.answer())[0] == "ready"
        assert worker.serving == (True, 0)
        assert worker.engine.events == []


@scenario
async def test_a_group_is_formed_before_ready_without_a_pause() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        await update(stream, version=0)
        worker.engine.events.clear()
        prepare(stream, version=1, epoch=2)
        assert (await stream.answer())[0] == "ready"
        assert worker.serving == (True, 0)
        assert worker.engine.events == ["form_group"]


@scenario
async def test_a_group_that_cannot_be_formed_is_a_failed_update_and_the_version_goes_on() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        await update(stream, version=0)
        worker.engine.events.clear()
        worker.engine.fail("form_group", TransferError("the gate refused this member's nonce"))
        prepare(stream, version=1, epoch=2)
        kind, failed = await stream.answer()
        assert (kind, failed.epoch, failed.version) == ("failed", 2, 1)
        assert "nonce" in failed.reason
        assert worker.serving == (True, 0)
        stream.tell(begin=BEGIN(epoch=2, version=1))
        assert (await stream.answer())[0] == "failed"
        assert "pause" not in worker.engine.events
        await update(stream, version=1, epoch=3)
        assert worker.serving == (True, 1)


@scenario
async def test_nothing_is_served_between_begin_and_commit() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        await update(stream, version=0)
        worker.engine.receiving.clear()
        await begin(stream, version=1)
        await until(lambda: not worker.served.serving)
        assert worker.engine.events[-1] == "pause"
        worker.engine.receiving.set()
        assert (await stream.answer())[0] == "applied"
        assert not worker.served.serving
        stream.tell(commit=pb.Commit(version=1))
        assert (await stream.answer())[0] == "serving"
        assert worker.serving == (True, 1)


@scenario
async def test_a_version_that_fits_is_received_while_the_engine_samples() -> None:
    async with start_worker(staging_bytes=STAGED) as worker:
        stream = await worker.learner.joined()
        await update(stream, version=0)
        worker.engine.events.clear()
        worker.engine.receiving.clear()
        await begin(stream, version=1)
        await until(lambda: worker.engine.events == ["stage"])
        assert worker.serving == (True, 0)
        await asyncio.sleep(0.3)
        worker.engine.receiving.set()
        assert (await stream.answer())[0] == "applied"
        assert worker.serving == (True, 0)
        stream.tell(commit=pb.Commit(version=1))
        kind, serving = await stream.answer()
        assert (kind, worker.serving) == ("serving", (True, 1))
        assert worker.engine.events == ["stage", "pause", "commit", "resume"]
        assert serving.pause_seconds < 0.3


@scenario
async def test_a_version_that_is_larger_by_a_byte_pauses_the_engine() -> None:
    async with start_worker(staging_bytes=STAGED - 1) as worker:
        stream = await worker.learner.joined()
        await update(stream, version=0)
        assert worker.engine.events == ["form_group", "pause", "receive", "commit", "resume"]


@scenario
async def test_a_worker_says_what_it_keeps_to_the_learner_that_sent_it() -> None:
    async with start_worker(staging_bytes=STAGED) as worker:
        stream = await worker.learner.joined()
        await update(stream, version=1)
        worker.engine.kept = 1
        prepare(stream, version=2)
        assert await stream.answer() == ("ready", pb.Ready(epoch=1, version=2, base_version=1))
        stream.tell(begin=pb.Begin(epoch=1, version=2, manifest=MANIFEST, base_version=1, key=b"k"))
        assert (await stream.answer())[0] == "applied"
        assert (worker.engine.bases, worker.engine.keys) == ([-1, 1], [b"", b"k"])
        prepare(stream, version=2, sender=b"another learner")
        assert await stream.answer() == ("ready", pb.Ready(epoch=1, version=2, base_version=-1))


@scenario
async def test_a_delta_is_received_while_the_engine_samples_however_large_it_is() -> None:
    async with start_worker(staging_bytes=0) as worker:
        stream = await worker.learner.joined()
        await update(stream, version=1)
        worker.engine.events.clear()
        prepare(stream, version=2)
        assert (await stream.answer())[0] == "ready"
        stream.tell(begin=pb.Begin(epoch=1, version=2, manifest=MANIFEST, base_version=1))
        assert (await stream.answer())[0] == "applied"
        stream.tell(commit=pb.Commit(version=2))
        assert (await stream.answer())[0] == "serving"
        assert worker.engine.events == ["stage", "pause", "commit", "resume"]


@scenario
async def test_a_version_that_does_not_arrive_leaves_the_engine_as_it_was() -> None:
    async with start_worker(staging_bytes=STAGED) as worker:
        stream = await worker.learner.joined()
        await update(stream, version=0)
        worker.engine.events.clear()
        failed = await fail(worker, stream, version=1, call="stage")
        assert failed.reason == "bucket 0 arrived damaged"
        assert worker.serving == (True, 0)
        assert worker.engine.events == ["stage"]
        await update(stream, version=2, epoch=2)
        assert worker.serving == (True, 2)


@scenario
async def test_an_abort_ends_a_receipt_before_its_deadline_and_the_engine_samples_on() -> None:
    async with start_worker(staging_bytes=STAGED) as worker:
        stream = await worker.learner.joined()
        await update(stream, version=1)
        worker.engine.events.clear()
        worker.engine.receiving.clear()
        await begin(stream, version=2)
        await until(lambda: "stage" in worker.engine.events)
        stream.tell(abort=pb.Abort(epoch=1, reason="the broadcast stands still"))
        kind, failed = await stream.answer()
        assert (kind, failed.version, failed.reason) == ("failed", 2, "the group was closed")
        assert worker.engine.events == ["stage", "leave_group"]
        assert worker.serving == (True, 1)
        worker.engine.receiving.set()
        await update(stream, version=2, epoch=2)
        assert worker.serving == (True, 2)


@scenario
async def test_a_rollout_that_leaves_its_group_for_the_next_update_joins_one_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with start_worker(staging_bytes=STAGED) as worker:
        stream = await worker.learner.joined()
        await update(stream, version=1)
        worker.engine.receiving.clear()
        await begin(stream, version=2)
        await until(lambda: "stage" in worker.engine.events)
        formed = len(worker.engine.rendezvous)

        async def leave_group() -> None:
            worker.engine.receiving.set()  # all bytes are there at the same moment

        monkeypatch.setattr(worker.engine, "leave_group", leave_group)
        prepare(stream, version=3)
        assert (await stream.answer())[0] == "applied"
        assert (await stream.answer())[0] == "ready"
        assert len(worker.engine.rendezvous) == formed + 1


@pytest.mark.parametrize(
    "call", ["form_group", "pause", "commit", "resume", "base_version", "leave_group", "end"]
)
@scenario
async def test_a_rollout_whose_engine_hangs_in_an_update_ends(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    async with start_worker(staging_bytes=STAGED) as worker:
        stream = await worker.learner.joined()
        await update(stream, version=1)
        monkeypatch.setattr("slipstream.rollout.fleet.ENGINE_SECONDS", 0.05)

        async def hang(*_: object, **_named: object) -> None:
            await asyncio.Event().wait()

        aborted = call in {"leave_group", "end"}
        if aborted:
            worker.engine.receiving.clear()
        if call == "end":  # of the receipt after its group was left
            monkeypatch.setattr(worker.engine, "stage", hang)
        else:
            monkeypatch.setattr(worker.engine, call, hang)
        epoch = 2 if call == "form_group" else 1
        prepare(stream, version=2, epoch=epoch, timeout_seconds=0.001)
        if call not in {"base_version", "form_group"}:
            await stream.answer()
            stream.tell(begin=BEGIN(epoch=1, version=2))
            if aborted:
                stream.tell(abort=pb.Abort(epoch=1, reason="the broadcast stands still"))
            else:
                await stream.answer()
                stream.tell(commit=pb.Commit(version=2))
        with pytest.raises(EngineDied, match="the engine did not answer"):
            await asyncio.wait_for(asyncio.shield(worker.running), 10)


@scenario
async def test_a_receipt_ends_with_the_stream() -> None:
    async with start_worker(staging_bytes=STAGED) as worker:
        stream = await worker.learner.joined()
        await update(stream, version=1)
        worker.engine.receiving.clear()
        await begin(stream, version=2)
        await until(lambda: worker.engine.events[-1] == "stage")
        stream.cut()
        again = await worker.learner.joined()
        assert again.join.serving_version == 1
        assert worker.engine.events[-1] == "leave_group"
        worker.engine.receiving.set()
        await update(again, version=2)
        assert worker.serving == (True, 2)


@scenario
async def test_a_staged_version_that_breaks_in_the_engine_leaves_it_paused() -> None:
    async with start_worker(staging_bytes=STAGED) as worker:
        stream = await worker.learner.joined()
        await update(stream, version=0)
        worker.engine.fail("commit", TransferError("a tensor is missing"))
        await begin(stream, version=1)
        assert (await stream.answer())[0] == "applied"
        stream.tell(commit=pb.Commit(version=1))
        assert (await stream.answer())[0] == "failed"
        assert not worker.served.serving
        await asyncio.sleep(0.3)
        serving = await update(stream, version=2, epoch=2)
        assert serving.pause_seconds >= 0.3
        assert worker.serving == (True, 2)


@scenario
async def test_one_group_serves_many_versions_of_an_epoch() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        for version in (0, 1, 2):
            await update(stream, version=version, epoch=4)
        await update(stream, version=3, epoch=5)
        assert [r.epoch for r in worker.engine.rendezvous] == [4, 5]


@scenario
async def test_a_failed_update_leaves_the_worker_paused_until_a_whole_one_succeeds() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        await update(stream, version=0)
        failed = await fail(worker, stream, version=1)
        assert (failed.epoch, failed.version, failed.reason) == (1, 1, "bucket 0 arrived damaged")
        assert not worker.served.serving
        assert worker.engine.events[-1] == "receive"
        stream.tell(abort=pb.Abort(epoch=1, reason="the test says so"))
        await update(stream, version=2, epoch=2)
        assert worker.serving == (True, 2)
        assert worker.engine.events[-2:] == ["commit", "resume"]


@scenario
async def test_a_group_is_formed_anew_after_a_failure_in_the_same_epoch() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        await update(stream, version=0)
        await fail(worker, stream, version=1)
        await update(stream, version=2)
        assert len(worker.engine.rendezvous) == 2


@scenario
async def test_the_pause_is_counted_from_the_first_begin_over_a_failure() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        await update(stream, version=0)
        await fail(worker, stream, version=1)
        await asyncio.sleep(0.5)
        serving = await update(stream, version=2, epoch=2)
        assert serving.pause_seconds >= 0.5
        undisturbed = await update(stream, version=3, epoch=2)
        assert 0 < undisturbed.pause_seconds < 0.5
        assert metric(worker.metrics, "update_pause_seconds_count") == 3


@scenario
async def test_a_begin_that_was_not_prepared_is_refused_and_nothing_pauses() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        await update(stream, version=0)
        worker.engine.events.clear()
        for epoch, version in ((1, 5), (2, 0)):
            stream.tell(begin=BEGIN(epoch=epoch, version=version))
            kind, failed = await stream.answer()
            assert (kind, failed.reason) == ("failed", "Begin without its Prepare")
        assert worker.serving == (True, 0)
        assert worker.engine.events == []


@scenario
async def test_a_begin_after_an_abort_is_refused() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        await update(stream, version=0)
        prepare(stream, version=1)
        await stream.answer()
        stream.tell(abort=pb.Abort(epoch=1, reason="another member was not ready"))
        stream.tell(begin=BEGIN(epoch=1, version=1))
        assert (await stream.answer())[0] == "failed"
        assert worker.serving == (True, 0)
        await update(stream, version=1)
        assert len(worker.engine.rendezvous) == 2


@scenario
async def test_only_a_completely_received_version_is_committed() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        await update(stream, version=0)
        await fail(worker, stream, version=1)
        stream.tell(commit=pb.Commit(version=1))
        kind, failed = await stream.answer()
        assert (kind, failed.version) == ("failed", 1)
        assert not worker.served.serving
        assert worker.engine.events[-1] == "receive"


@scenario
async def test_an_applied_version_is_committed_even_when_others_made_the_learner_abort() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        await begin(stream, version=1)
        assert (await stream.answer())[0] == "applied"
        stream.tell(abort=pb.Abort(epoch=1, reason="another member failed"))
        stream.tell(commit=pb.Commit(version=1))
        assert (await stream.answer())[0] == "serving"
        assert worker.serving == (True, 1)


@scenario
async def test_a_commit_that_breaks_in_the_engine_is_a_failed_update() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        worker.engine.fail("commit", TransferError("could not bring the tensors into form"))
        await begin(stream, version=1)
        await stream.answer()
        stream.tell(commit=pb.Commit(version=1))
        kind, failed = await stream.answer()
        assert (kind, failed.epoch, failed.version) == ("failed", 1, 1)
        assert not worker.served.serving
        assert "resume" not in worker.engine.events
        await update(stream, version=2)
        assert worker.serving == (True, 2)


@scenario
async def test_a_cut_stream_is_joined_again_with_the_version_served_and_a_new_group() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        await update(stream, version=4, epoch=1)
        stream.cut()
        again = await worker.learner.joined()
        assert again.join.serving_version == 4
        assert worker.serving == (True, 4)
        await update(again, version=5, epoch=1)
        assert [r.epoch for r in worker.engine.rendezvous] == [1, 1]


@scenario
async def test_a_worker_whose_update_failed_joins_again_without_a_version() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        await update(stream, version=4)
        await fail(worker, stream, version=5)
        stream.cut()
        again = await worker.learner.joined()
        assert again.join.serving_version == -1
        await update(again, version=5)
        assert worker.serving == (True, 5)


@scenario
async def test_a_stream_that_ends_during_the_transfer_is_joined_again() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        await update(stream, version=0)
        worker.engine.receiving.clear()
        await begin(stream, version=1)
        await until(lambda: not worker.served.serving)
        stream.cut()
        await asyncio.sleep(0.1)
        worker.engine.receiving.set()
        again = await worker.learner.joined()
        assert again.join.serving_version == -1
        await update(again, version=1)
        assert worker.serving == (True, 1)


@scenario
async def test_a_version_that_arrived_on_an_old_stream_is_not_committed_on_a_new_one() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        await begin(stream, version=1)
        assert (await stream.answer())[0] == "applied"
        stream.cut()
        again = await worker.learner.joined()
        again.tell(commit=pb.Commit(version=1))
        assert (await again.answer())[0] == "failed"
        assert not worker.served.serving


@scenario
async def test_a_worker_waits_for_a_learner_that_has_not_started() -> None:
    config, learner = small_config(), FakeLearner()
    probe = await start_server("127.0.0.1:0", lambda _: None, config=config.rpc)
    await probe.stop(grace=0)
    engine, served = FakeEngine(), ServedVersion()
    async with open_channel(probe.address, config.rpc) as channel:
        running = asyncio.create_task(member(engine, served, Metrics()).run(channel))
        await asyncio.sleep(0.3)
        assert not running.done()
        async with served_by(partial(add_FleetServicer_to_server, learner), config, probe.address):
            await update(await learner.joined(), version=0)
        assert served.serving
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@scenario
async def test_a_refused_worker_ends_with_the_learners_reason() -> None:
    learner = FakeLearner()
    learner.refusal = (grpc.StatusCode.FAILED_PRECONDITION, "rollout w has model a, the learner b")
    async with start_worker(learner) as worker:
        with pytest.raises(Refused, match="rollout w has model a, the learner b"):
            await worker.running


@scenario
async def test_an_engine_that_dies_in_an_update_ends_the_member() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        worker.engine.fail("receive", EngineDied("gone"))
        await begin(stream, version=1)
        with pytest.raises(EngineDied, match="gone"):
            await worker.running


@scenario
async def test_waiting_for_a_version_ends_with_the_first_commit() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        waiting = asyncio.create_task(worker.served.wait())
        await fail(worker, stream, version=0)
        assert not waiting.done()
        await update(stream, version=0, epoch=2)
        await asyncio.wait_for(waiting, 1)


@scenario
async def test_a_missing_learner_is_retried_and_logged_once() -> None:
    lines, config = io.StringIO(), small_config()
    async with open_channel("127.0.0.1:1", config.rpc) as channel:
        alone = member(FakeEngine(), ServedVersion(), Metrics(), Log(pod="w", stream=lines))
        running = asyncio.create_task(alone.run(channel))
        await asyncio.sleep(0.6)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert lines.getvalue().count("lost the learner") == 1
    assert "UNAVAILABLE" in lines.getvalue()


PROBE = pb.ParityProbe(token_ids=[3, 4, 5], logprobs=[-1.0, -2.0])


async def serve_with_probe(worker: Worker, stream: Stream, *, version: int, epoch: int = 1) -> None:
    await begin(stream, version=version, epoch=epoch)
    assert (await stream.answer())[0] == "applied"
    stream.tell(commit=pb.Commit(version=version, probe=PROBE))
    assert (await stream.answer())[0] == "serving"
    await until(lambda: worker.engine.probed)


@pytest.mark.parametrize("computed", [[-1.1, -2.1], [-1.1], None], ids=["close", "short context", "no model"])
@scenario
async def test_an_engine_with_the_learners_logprobs_serves(computed: list[float] | None) -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        worker.engine.computed = computed
        await serve_with_probe(worker, stream, version=3)
        await update(stream, version=4)
        assert worker.serving == (True, 4)
        assert worker.engine.probed == [(3, 4, 5)]
        expected = 0.1 if computed else 0.0
        assert metric(worker.metrics, "parity_difference") == pytest.approx(expected)
        assert metric(worker.metrics, "parity_refusals_total") == 0


@pytest.mark.parametrize("wrong", [-4.0, math.nan, -math.inf])
@scenario
async def test_an_engine_with_other_logprobs_stops_serving_and_gets_the_whole_version(wrong: float) -> None:
    async with start_worker(staging_bytes=STAGED) as worker:
        stream = await worker.learner.joined()
        worker.engine.computed, worker.engine.kept = [-1.0, wrong], -1
        await serve_with_probe(worker, stream, version=3)
        assert (await stream.answer())[0] == "leave"
        assert worker.serving == (False, 3)
        assert worker.engine.events[-2:] == ["pause", "load in full"]
        assert metric(worker.metrics, "parity_refusals_total") == 1
        worker.engine.kept = 3
        stream.cut()
        stream = await worker.learner.joined()
        assert stream.join.serving_version == -1
        worker.engine.computed = [-1.0, -2.0]
        await serve_with_probe(worker, stream, version=3, epoch=2)  # `begin` expects base_version -1
        await update_from(stream, base=3, version=4, epoch=2)
        assert worker.serving == (True, 4)


@scenario
async def test_no_update_that_is_under_way_undoes_a_refusal() -> None:
    async with start_worker(staging_bytes=STAGED) as worker:
        stream = await worker.learner.joined()
        engine = worker.engine
        engine.computed, engine.kept = [-1.0, -4.0], -1
        engine.probing.clear()
        engine.loading_in_full.clear()
        await serve_with_probe(worker, stream, version=3)
        engine.kept = 3
        prepare(stream, version=4)
        assert (await stream.answer())[0] == "ready"
        engine.probing.set()
        await until(lambda: engine.events[-1] == "load in full")
        stream.tell(begin=pb.Begin(manifest=MANIFEST, base_version=3, epoch=1, version=4))
        stream.tell(commit=pb.Commit(version=4))
        await asyncio.sleep(0.2)
        assert worker.serving == (False, 3)
        engine.loading_in_full.set()
        assert (await stream.answer())[0] == "leave"
        assert engine.events[-2:] == ["pause", "load in full"]
        stream.cut()
        stream = await worker.learner.joined()
        prepare(stream, version=5, epoch=2)
        assert await stream.answer() == ("ready", pb.Ready(epoch=2, version=5, base_version=-1))


@scenario
async def test_a_rollout_joins_again_after_its_refusal_has_ended() -> None:
    async with start_worker(staging_bytes=STAGED) as worker:
        stream = await worker.learner.joined()
        engine = worker.engine
        engine.computed = [-1.0, -4.0]
        engine.loading_in_full.clear()
        await serve_with_probe(worker, stream, version=3)
        await until(lambda: engine.events[-1] == "load in full")
        stream.cut()
        await asyncio.sleep(0.2)
        assert worker.learner.streams.empty()
        engine.loading_in_full.set()
        await worker.learner.joined()


@scenario
async def test_an_engine_that_dies_in_a_refusal_ends_the_rollout() -> None:
    async with start_worker(staging_bytes=STAGED) as worker:
        stream = await worker.learner.joined()
        worker.engine.computed = [-1.0, -4.0]
        worker.engine.fail("load in full", EngineDied("killed"))
        await serve_with_probe(worker, stream, version=3)
        assert (await stream.answer())[0] == "leave"
        stream.cut()
        with pytest.raises(EngineDied, match="killed"):
            await worker.running


async def update_from(stream: Stream, *, base: int, version: int, epoch: int) -> None:
    """Prepare an update of a worker that keeps version `base`, and run it."""
    prepare(stream, version=version, epoch=epoch)
    assert await stream.answer() == ("ready", pb.Ready(epoch=epoch, version=version, base_version=base))
    stream.tell(begin=BEGIN(epoch=epoch, version=version))
    assert (await stream.answer())[0] == "applied"
    stream.tell(commit=pb.Commit(version=version))
    assert (await stream.answer())[0] == "serving"


@scenario
async def test_an_engine_that_differs_after_three_full_loads_ends_for_a_new_one() -> None:
    async with start_worker() as worker:
        worker.engine.computed = [-9.0, -9.0]
        for epoch in (1, 2, 3):
            stream = await worker.learner.joined()
            await serve_with_probe(worker, stream, version=3, epoch=epoch)
            assert (await stream.answer())[0] == "leave"
            stream.cut()
            worker.engine.probed.clear()
        with pytest.raises(EngineDied, match=r"3 versions in a row differ from the learner"):
            await worker.running


@scenario
async def test_a_probe_of_an_older_version_is_given_up_and_nothing_waits_for_it() -> None:
    async with start_worker() as worker:
        stream = await worker.learner.joined()
        worker.engine.computed = [-9.0, -9.0]
        worker.engine.probing.clear()
        await serve_with_probe(worker, stream, version=3)
        await update(stream, version=4)
        worker.engine.probing.set()
        await update(stream, version=5)
        assert worker.serving == (True, 5)
        assert metric(worker.metrics, "parity_refusals_total") == 0
