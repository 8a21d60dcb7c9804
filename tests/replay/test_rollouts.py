"""Actors find rollouts by the heartbeats that these send to replay."""

import asyncio

import grpc
import pytest
from replay.driver import Driver, scenario
from slipstream.records import ListedRollout, RolloutStatus
from slipstream.rpc import replay_codec
from slipstream.v1 import replay_pb2 as pb


def rollout(
    name: str, *, version: int = 3, address: str = "127.0.0.1:5000", places: int = 8
) -> ListedRollout:
    status = RolloutStatus(
        serving_version=version, serving=True, places=places, groups_running=2, kv_cache_usage=0.5
    )
    return ListedRollout(worker_id=name, address=address, status=status)


async def report(replay: Driver, *rollouts: ListedRollout) -> None:
    for each in rollouts:
        request = pb.ReportRolloutRequest(rollout=replay_codec.listed_rollout_to_proto(each))
        await replay.stub.ReportRollout(request)


async def listed(replay: Driver) -> list[ListedRollout]:
    response = await replay.stub.ListRollouts(pb.ListRolloutsRequest())
    return [replay_codec.listed_rollout_from_proto(each) for each in response.rollouts]


@scenario()
async def test_the_list_has_the_last_heartbeat_of_each_rollout_by_name(replay: Driver) -> None:
    assert await listed(replay) == []
    await report(replay, rollout("rollout-1"), rollout("rollout-0"), rollout("rollout-1", version=4))
    assert await listed(replay) == [rollout("rollout-0"), rollout("rollout-1", version=4)]


@scenario(lease_seconds=0.3)
async def test_a_rollout_without_heartbeats_is_not_listed(replay: Driver) -> None:
    await report(replay, rollout("silent"), rollout("alive"))
    for _ in range(4):
        await asyncio.sleep(0.1)
        await report(replay, rollout("alive"))
    assert [each.worker_id for each in await listed(replay)] == ["alive"]


@scenario()
async def test_a_rollout_that_leaves_is_not_listed(replay: Driver) -> None:
    await report(replay, rollout("rollout-0"), rollout("rollout-1"))
    await report(replay, rollout("rollout-0", address=""))
    assert [each.worker_id for each in await listed(replay)] == ["rollout-1"]


@scenario()
async def test_the_activity_names_rollouts_with_the_version_that_they_serve(replay: Driver) -> None:
    await report(replay, rollout("rollout-0", version=7))
    (worker,) = (await replay.store.activity()).workers
    assert (worker.worker_id, worker.serving_version, worker.leases) == ("rollout-0", 7, 0)


@scenario()
async def test_a_heartbeat_without_a_name_is_refused(replay: Driver) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="worker_id"):
        await report(replay, rollout(""))
