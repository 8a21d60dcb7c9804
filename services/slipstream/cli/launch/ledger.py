"""The last word of replay about a run: its ledger."""

from slipstream.config import RpcConfig
from slipstream.types import Ledger

ANSWER_SECONDS = 2.0


async def read_ledger(address: str, config: RpcConfig) -> Ledger | None:
    """Replay's ledger; None when it does not answer in time."""
    import grpc

    from slipstream.rpc.channel import open_channel
    from slipstream.rpc.codec import ledger_from_proto
    from slipstream.v1 import replay_pb2, replay_pb2_grpc

    async with open_channel(address, config) as channel:
        stub = replay_pb2_grpc.ReplayStub(channel)  # type: ignore[no-untyped-call, unused-ignore]
        try:
            answer = await stub.GetStats(replay_pb2.GetStatsRequest(), timeout=ANSWER_SECONDS)
        except grpc.aio.AioRpcError:
            return None
    return ledger_from_proto(answer.ledger)
