"""The state of a running run, as replay reports it: the ledger, and the workers with their throughput."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

import grpc

from slipstream.config import RpcConfig
from slipstream.records import Admission, Ledger, ListedRollout, ReplayStats
from slipstream.rpc.channel import open_channel
from slipstream.rpc.replay_codec import activity_from_proto, listed_rollout_from_proto
from slipstream.v1 import replay_pb2 as pb
from slipstream.v1.replay_pb2_grpc import ReplayStub

Json = dict[str, Any]
FRESH_SECONDS: Final = 1.0
"""Age up to which an answer is given again, so that many open pages cost no more than one."""
ANSWER_SECONDS: Final = 2.0


@dataclass(slots=True)
class LiveState:
    """Asks the replay of one run. `address`: of replay."""

    address: str
    config: RpcConfig
    _channel: grpc.aio.Channel | None = None
    _last: tuple[float, Json | None] = (0.0, None)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def read(self) -> Json | None:
        """Return ledger, admission, workers and rollouts; None if replay does not answer."""
        async with self._lock:
            if time.monotonic() - self._last[0] > FRESH_SECONDS:
                self._last = (time.monotonic(), await self._read())
            return self._last[1]

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await self._channel.close(grace=None)

    async def _read(self) -> Json | None:
        if self._channel is None:
            self._channel = open_channel(self.address, self.config)
        stub = ReplayStub(self._channel)
        try:
            stats, activity, rollouts = await asyncio.gather(
                stub.GetStats(pb.GetStatsRequest(), timeout=ANSWER_SECONDS),
                stub.GetActivity(pb.GetActivityRequest(), timeout=ANSWER_SECONDS),
                stub.ListRollouts(pb.ListRolloutsRequest(), timeout=ANSWER_SECONDS),
            )
        except grpc.aio.AioRpcError:
            return None
        seen = activity_from_proto(activity)
        rates = {worker.worker_id: worker.throughput for worker in seen.workers}
        listed = [listed_rollout_from_proto(each) for each in rollouts.rollouts]
        return {
            "ledger": {**_plain(asdict(seen.ledger)), "residual": seen.ledger.residual},
            "announced_version": stats.version,
            "admission_free": stats.admission_free,
            "paused": seen.admission.paused,
            "admission": asdict(seen.admission),
            "kept": stats.kept,
            "workers": [_plain(asdict(worker)) for worker in seen.workers],
            "oldest_lease_seconds": seen.oldest_lease_seconds,
            "oldest_lease_worker": seen.oldest_lease_worker,
            "rollouts": [_rollout(each, rates.get(each.worker_id)) for each in listed],
        }


def replay_stats(live: Json) -> ReplayStats:
    """Return ledger and admission of what LiveState has read."""
    return ReplayStats(
        ledger=Ledger(**{counter.name: live["ledger"][counter.name] for counter in fields(Ledger)}),
        version=live["announced_version"],
        admission_free=live["admission_free"],
        kept=live["kept"],
        admission=Admission(**live["admission"]),
    )


def _rollout(listed: ListedRollout, rate: float | None) -> Json:
    return {"name": listed.worker_id, **_plain(asdict(listed.status)), "tokens_per_second": rate}


def _plain(values: Mapping[str, Any]) -> Json:
    """Return a mapping as JSON holds it."""
    return {key: dict(value) if isinstance(value, Mapping) else value for key, value in values.items()}
