"""Reads the ledger of a run from replay."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.config import RpcConfig
from slipstream.records import Ledger, ReplayStats

ANSWER_SECONDS = 2.0
VERBOSITY = "GRPC_VERBOSITY"


async def read_ledger(address: str, config: RpcConfig) -> Ledger | None:
    """Return replay's ledger; None if replay does not answer in time."""
    stats = await read_stats(address, config)
    return None if stats is None else stats.ledger


async def read_stats(address: str, config: RpcConfig) -> ReplayStats | None:
    """Return the ledger and the admission of replay; None if replay does not answer in time."""
    with grpc_logs_errors_only():
        import grpc

        from slipstream.rpc.channel import open_channel
        from slipstream.rpc.replay_codec import admission_from_proto, ledger_from_proto
        from slipstream.v1 import replay_pb2, replay_pb2_grpc

        async with open_channel(address, config) as channel:
            stub = replay_pb2_grpc.ReplayStub(channel)  # type: ignore[no-untyped-call, unused-ignore]
            try:
                answer = await stub.GetStats(replay_pb2.GetStatsRequest(), timeout=ANSWER_SECONDS)
            except grpc.aio.AioRpcError:
                return None
    return ReplayStats(
        ledger=ledger_from_proto(answer.ledger),
        version=answer.version,
        admission_free=answer.admission_free,
        kept=answer.kept,
        admission=admission_from_proto(answer.admission),
    )


@contextmanager
def grpc_logs_errors_only() -> Iterator[None]:
    """Set gRPC's verbosity to errors: otherwise it logs a warning when replay closes its connection.

    gRPC reads the variable once. It is unset again, because child processes log more.
    """
    before = os.environ.get(VERBOSITY)
    os.environ.setdefault(VERBOSITY, "ERROR")
    try:
        yield
    finally:
        if before is None:
            del os.environ[VERBOSITY]
