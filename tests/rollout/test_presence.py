"""The heartbeat of a rollout says how many tokens it samples per second."""

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from slipstream.config import RpcConfig
from slipstream.records import RolloutStatus
from slipstream.rollout import presence
from slipstream.rollout.presence import Presence
from slipstream.telemetry.metrics import Metrics
from slipstream.telemetry.throughput import Throughput
from slipstream.v1 import replay_pb2 as pb
from slipstream.v1.replay_pb2_grpc import ReplayServicer, add_ReplayServicer_to_server


class Replay(ReplayServicer):
    """Keeps the heartbeats."""

    def __init__(self) -> None:
        self.reports: list[pb.ReportRolloutRequest] = []

    async def ReportRollout(self, request: pb.ReportRolloutRequest, _: Any) -> pb.ReportRolloutResponse:
        self.reports.append(request)
        return pb.ReportRolloutResponse()


def test_a_heartbeat_has_the_tokens_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> list[pb.ReportRolloutRequest]:
        replay, server, now = Replay(), grpc.aio.server(), [100.0]
        monkeypatch.setattr(presence, "Throughput", lambda total: Throughput(total, clock=lambda: now[0]))
        add_ReplayServicer_to_server(replay, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        metrics = Metrics()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            rollout = Presence(
                channel,
                name="rollout-0",
                address="127.0.0.1:5000",
                servicer=SimpleNamespace(status=RolloutStatus),  # type: ignore[arg-type]
                served=SimpleNamespace(serving=True),  # type: ignore[arg-type]
                seconds=5.0,
                rpc=RpcConfig(),
                metrics=metrics,
                log=SimpleNamespace(warning=print),  # type: ignore[arg-type]
            )
            await rollout.leave()
            now[0] += 4.0
            metrics.count("tokens_generated_total", 1000)
            await rollout.leave()
        await server.stop(None)
        return replay.reports

    first, second = asyncio.run(play())
    assert not first.HasField("throughput")
    assert second.throughput == 250.0
