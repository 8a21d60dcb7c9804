"""The state of a running run: replay's ledger and workers, and the counters of the pods on this machine."""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.request import ProxyHandler, build_opener

import grpc

from slipstream.config import RpcConfig
from slipstream.records import ListedRollout
from slipstream.rpc.channel import open_channel
from slipstream.rpc.replay_codec import activity_from_proto, listed_rollout_from_proto
from slipstream.telemetry.readings import Page
from slipstream.v1 import replay_pb2 as pb
from slipstream.v1.replay_pb2_grpc import ReplayStub

Json = dict[str, Any]
FRESH_SECONDS: Final = 1.0
"""Age up to which an answer is given again, so that many open pages cost no more than one."""
ANSWER_SECONDS: Final = 2.0
PAGE_SECONDS: Final = 1.0
DIRECT: Final = build_opener(ProxyHandler({}))
"""Asks this machine itself, whatever proxy the environment names."""


@dataclass(slots=True)
class _Count:
    """The last two readings of a counter."""

    tokens: float = 0.0
    at: float = 0.0
    rate: float | None = None


@dataclass(slots=True)
class LiveState:
    """Asks replay and the pods of one run. `address` of replay; `pods`: the folder of their ready files."""

    address: str
    config: RpcConfig
    pods: Path | None = None
    _channel: grpc.aio.Channel | None = None
    _last: tuple[float, Json | None] = (0.0, None)
    _counts: dict[str, _Count] = field(default_factory=dict)
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
        rates = await asyncio.to_thread(self._rates)
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

    def _rates(self) -> Mapping[str, float]:
        """Return the tokens per second of each rollout on this machine since the reading before."""
        if self.pods is None:
            return {}
        for file in self.pods.glob("rollout-*.json"):
            count = self._counts.setdefault(file.stem, _Count())
            tokens = _tokens(file)
            now = time.monotonic()
            if tokens is not None:
                grew = tokens - count.tokens
                count.rate = grew / (now - count.at) if count.at and grew >= 0 else None
                count.tokens, count.at = tokens, now
        return {name: count.rate for name, count in self._counts.items() if count.rate is not None}


def _tokens(file: Path) -> float | None:
    """Return the number of tokens that a rollout has sampled; None if it does not answer."""
    try:
        port = int(json.loads(file.read_text(encoding="utf-8"))["metrics_port"])
        with DIRECT.open(f"http://127.0.0.1:{port}/metrics", timeout=PAGE_SECONDS) as answer:
            return Page(answer.read().decode()).value("tokens_generated_total")
    except (OSError, ValueError, KeyError, TypeError, HTTPException):
        return None


def _rollout(listed: ListedRollout, rate: float | None) -> Json:
    return {"name": listed.worker_id, **_plain(asdict(listed.status)), "tokens_per_second": rate}


def _plain(values: Mapping[str, Any]) -> Json:
    """Return a mapping as JSON holds it."""
    return {key: dict(value) if isinstance(value, Mapping) else value for key, value in values.items()}
