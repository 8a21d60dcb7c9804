"""The pause of admission: what goes on, who sees it, and what ends it."""

import asyncio
import time
from pathlib import Path

import grpc
from replay.driver import ACCEPTED, Driver, failure, run_config, scenario, serving
from slipstream.replay.gauges import show
from slipstream.v1 import replay_pb2 as pb


def training(leases: list[pb.Lease]) -> list[pb.Lease]:
    return [lease for lease in leases if lease.purpose == pb.PURPOSE_TRAINING]


@scenario(depth=2, per_step=4)
async def test_while_admission_is_paused_no_training_lease_is_given(replay: Driver) -> None:
    await replay.set_admission(paused=True)
    assert await replay.lease(4) == []
    assert await replay.lease(4, wait=0.1) == []
    assert (await replay.stats()).admission_free == 0
    await replay.set_admission(paused=False)
    assert (await replay.stats()).admission_free == 12
    assert len(await replay.lease(100)) == 12


@scenario(depth=2, per_step=2)
async def test_a_pause_stops_neither_heartbeats_nor_insertions_nor_batches(replay: Driver) -> None:
    first, second, third = await replay.lease(3)
    await replay.set_admission(paused=True)
    assert await replay.renew(first, second, third) == []
    assert await replay.insert(first) == ACCEPTED
    assert await replay.insert(second) == ACCEPTED
    assert await replay.return_leases(third) == 1
    batch = await replay.train(2, version=1)
    await replay.announce(1)
    assert len(batch) == 2
    assert await replay.confirm(1) == 2
    assert await replay.lease(4) == [], "neither the returned prompt nor a new one"


@scenario()
async def test_held_out_evaluations_go_on_while_admission_is_paused(replay: Driver) -> None:
    await replay.set_admission(paused=True)
    await replay.start_evaluation(prompts=2)
    leases = await replay.lease(4)
    assert [lease.purpose for lease in leases] == [pb.PURPOSE_EVALUATION] * 2


@scenario(depth=0, per_step=4)
async def test_a_retry_gets_the_leases_of_the_attempt_before_the_pause_and_no_others(replay: Driver) -> None:
    earlier = await replay.ask_again(2, attempt=1)
    await replay.set_admission(paused=True)
    again = await replay.ask_again(4, attempt=2)
    assert [lease.group_id for lease in again] == [lease.group_id for lease in earlier]
    assert (await replay.ledger()).leased == 2


@scenario(depth=0, per_step=4)
async def test_an_actor_that_waits_gets_a_lease_as_soon_as_the_pause_ends(replay: Driver) -> None:
    await replay.set_admission(paused=True)
    waiting = asyncio.create_task(replay.lease(1, wait=10))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await replay.set_admission(paused=False)
    assert len(await asyncio.wait_for(waiting, 1)) == 1


@scenario()
async def test_stats_and_activity_say_since_when_by_whom_and_why(replay: Driver) -> None:
    before = await replay.stats()
    assert before.admission == pb.Admission()
    await replay.set_admission(paused=True, by="anna", reason="new disk")
    for admission in ((await replay.stats()).admission, (await replay.activity()).admission):
        assert (admission.paused, admission.by, admission.reason) == (True, "anna", "new disk")
        assert abs(admission.since - time.time()) < 10
        assert 0 <= admission.seconds < 10
    await replay.set_admission(paused=False, by="ben", reason="")
    after = (await replay.stats()).admission
    assert (after.paused, after.by, after.reason) == (False, "ben", "")


@scenario()
async def test_a_second_pause_keeps_the_time_and_the_name_of_the_first(replay: Driver) -> None:
    first = await replay.set_admission(paused=True, by="anna", reason="new disk")
    second = await replay.set_admission(paused=True, by="ben", reason="lunch")
    assert (first.changed, second.changed) == (True, False)
    assert (second.admission.by, second.admission.reason) == ("anna", "new disk")
    assert second.admission.since == first.admission.since
    assert not (await replay.set_admission(paused=True)).changed
    assert (await replay.set_admission(paused=False)).changed
    assert not (await replay.set_admission(paused=False)).changed


@scenario()
async def test_a_pause_without_a_name_is_refused_and_a_long_reason_is_cut(replay: Driver) -> None:
    error = await failure(replay.set_admission(paused=True, by=""))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "by is empty; give the name" in str(error.details())
    assert not (await replay.stats()).admission.paused
    await replay.set_admission(paused=True, reason="x" * 5000)
    assert len((await replay.stats()).admission.reason) == 500


@scenario()
async def test_a_learner_that_attaches_leaves_the_pause_as_it_is(replay: Driver) -> None:
    await replay.set_admission(paused=True)
    await replay.attach(0)
    assert (await replay.stats()).admission.paused
    assert await replay.lease(1) == []


def test_all_replicas_of_replay_see_a_pause_at_once_and_so_does_one_that_starts_later(
    redis_url: str, tmp_path: Path
) -> None:
    async def play() -> None:
        config = run_config()
        async with serving(redis_url, config) as one, serving(redis_url, config) as two:
            await one.set_admission(paused=True)
            assert await two.lease(1) == []
            assert (await two.stats()).admission.by == "anna"
        async with serving(redis_url, config) as later:
            assert (await later.stats()).admission.paused
            assert await later.lease(1) == []

    asyncio.run(play())


def test_a_pause_of_one_run_leaves_another_run_in_the_same_redis_alone(redis_url: str) -> None:
    async def play() -> None:
        async with serving(redis_url, run_config()) as one, serving(redis_url, run_config()) as other:
            await one.set_admission(paused=True)
            assert not (await other.stats()).admission.paused
            assert len(await other.lease(1)) == 1

    asyncio.run(play())


@scenario()
async def test_the_gauge_is_1_while_admission_is_paused(replay: Driver) -> None:
    async def gauge() -> float | None:
        show(await replay.store.stats(), replay.metrics)
        return replay.metrics.registry.get_sample_value("slipstream_admission_paused")

    assert await gauge() == 0
    await replay.set_admission(paused=True)
    assert await gauge() == 1
    await replay.set_admission(paused=False)
    assert await gauge() == 0


@scenario(lease_seconds=0.05)
async def test_leases_expire_during_a_pause_and_their_prompts_wait_for_its_end(replay: Driver) -> None:
    (lease,) = await replay.lease(1)
    await replay.set_admission(paused=True)
    await asyncio.sleep(0.06)
    assert (await replay.store.expire()).expired == 1
    assert await replay.lease(1) == []
    await replay.set_admission(paused=False)
    (again,) = await replay.lease(1)
    assert (again.group_id, again.lease_epoch) == (lease.group_id, 2)
