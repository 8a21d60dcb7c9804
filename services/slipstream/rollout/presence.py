"""The heartbeat of a rollout at replay, by which actors find it."""

import asyncio
import socket
from contextlib import suppress

import grpc

from slipstream.config import RolloutConfig, RpcConfig
from slipstream.config.addresses import split_address
from slipstream.records import ListedRollout
from slipstream.rollout.servicer import RolloutServicer
from slipstream.rpc import replay_codec
from slipstream.rpc.channel import call_with_growing_deadline
from slipstream.rpc.errors import SlipstreamError, reason_of
from slipstream.served_version import ServedVersion
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.telemetry.throughput import Throughput
from slipstream.v1 import replay_pb2 as pb
from slipstream.v1.replay_pb2_grpc import ReplayStub

WILDCARDS = ("", "::", "0.0.0.0")
LEAVE_SECONDS = 1.0


class Presence:
    """Reports a rollout to replay every `seconds`, and at once when it first serves a version."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        name: str,
        address: str,
        servicer: RolloutServicer,
        served: ServedVersion,
        seconds: float,
        rpc: RpcConfig,
        metrics: Metrics,
        log: Log,
    ) -> None:
        """`address`: host:port at which actors reach this rollout."""
        self._stub = ReplayStub(channel)
        self._name = name
        self._address = address
        self._servicer = servicer
        self._served = served
        self._seconds = seconds
        self._rpc = rpc
        self._metrics = metrics
        self._throughput = Throughput(lambda: metrics.total("tokens_generated_total"))
        self._log = log

    async def run(self) -> None:
        """Report until cancelled. When replay does not answer, the next heartbeat tries again."""
        while True:
            new = not self._served.serving
            await self._report(self._address, give_up_after=self._seconds)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    if new:
                        await self._served.wait()
                    else:
                        await asyncio.sleep(self._seconds)

    async def leave(self) -> None:
        """Tell replay that this rollout takes no further requests."""
        await self._report("", give_up_after=LEAVE_SECONDS)

    async def _report(self, address: str, *, give_up_after: float) -> None:
        status = self._servicer.status()
        self._metrics.set("places", status.places)
        listed = ListedRollout(worker_id=self._name, address=address, status=status)
        request = pb.ReportRolloutRequest(
            rollout=replay_codec.listed_rollout_to_proto(listed), throughput=self._throughput.per_second()
        )
        try:
            await call_with_growing_deadline(
                "heartbeat",
                lambda seconds: self._stub.ReportRollout(request, timeout=seconds),
                answer_seconds=min(self._rpc.answer_seconds, give_up_after / 2),
                longest_seconds=min(self._rpc.timeout_seconds, give_up_after / 2),
                give_up_after=give_up_after,
            )
        except (SlipstreamError, grpc.aio.AioRpcError) as error:
            self._log.warning("no heartbeat: actors may not find this rollout", error=reason_of(error))


def advertised_address(config: RolloutConfig, bound: str) -> str:
    """Return host:port at which actors reach a rollout that listens on `bound`.

    The host is `rollout.host`, or that of `bound`, or this machine's name if `bound` is a wildcard.
    """
    host, port = split_address(bound)
    host = config.host or (socket.gethostname() if host in WILDCARDS else host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
