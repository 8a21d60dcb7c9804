"""The throughput of each worker, as it has reported it to replay."""

import asyncio
from pathlib import Path
from typing import Any

from embedded_redis import embedded_redis
from replay.driver import serving
from slipstream.config import parse_config
from slipstream.console.live import LiveState
from slipstream.records import ListedRollout, RolloutStatus
from slipstream.rpc import replay_codec
from slipstream.v1 import replay_pb2 as pb


def test_rollouts_have_tokens_and_actors_completions_per_second(tmp_path: Path) -> None:
    async def play(redis_url: str) -> Any:
        async with serving(redis_url, parse_config({})) as replay:
            for name, rate in (("rollout-0", 812.5), ("rollout-1", None)):
                listed = ListedRollout(worker_id=name, address="10.0.0.7:50052", status=RolloutStatus())
                message = replay_codec.listed_rollout_to_proto(listed)
                await replay.stub.ReportRollout(pb.ReportRolloutRequest(rollout=message, throughput=rate))
            await replay.renew(worker="actor-0", throughput=2.5)
            state = LiveState(replay.address, replay.config.rpc)
            live = await state.read()
            await state.close()
            return live

    with embedded_redis(tmp_path) as server:
        live = asyncio.run(play(server.url))
    assert {each["name"]: each["tokens_per_second"] for each in live["rollouts"]} == {
        "rollout-0": 812.5,
        "rollout-1": None,
    }
    assert {each["worker_id"]: each["throughput"] for each in live["workers"]} == {
        "actor-0": 2.5,
        "rollout-0": 812.5,
        "rollout-1": None,
    }
