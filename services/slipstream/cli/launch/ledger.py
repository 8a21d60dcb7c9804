"""The last word of replay about a run: its ledger."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.config import RpcConfig
from slipstream.records import Ledger

ANSWER_SECONDS = 2.0
VERBOSITY = "GRPC_VERBOSITY"


async def read_ledger(address: str, config: RpcConfig) -> Ledger | None:
    """Replay's ledger; None when it does not answer in time."""
    with _errors_alone():
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


@contextmanager
def _errors_alone() -> Iterator[None]:
    """gRPC's core reads once how much to say, and would say of a replay that goes away that it does so.

    The variable is not left to the children, where the core has more to say.
    """
    given = os.environ.get(VERBOSITY)
    os.environ.setdefault(VERBOSITY, "ERROR")
    try:
        yield
    finally:
        if given is None:
            del os.environ[VERBOSITY]
