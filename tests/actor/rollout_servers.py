"""Real gRPC rollouts over an engine whose next token is a function of its context, and which may be lost."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from rollout.fakes import small_config
from slipstream.actor.rollouts import Rollouts
from slipstream.config.sections.run import StalenessConfig
from slipstream.records import Chunk, FinishReason, ListedRollout, Sampling, Turn, VersionSpan, chunk_since
from slipstream.rollout.engine import EngineDied
from slipstream.rollout.servicer import RolloutServicer
from slipstream.rpc.channel import open_channel
from slipstream.rpc.server import Server, start_server
from slipstream.served_version import ServedVersion
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.v1.rollout_pb2_grpc import add_RolloutServicer_to_server

CONFIG = small_config()
STOP = 0
CHUNK_SECONDS = 0.02
SILENCE_SECONDS = 0.6


def next_token(context: tuple[int, ...]) -> int:
    """Return the token that every engine samples after this context."""
    return (31 * sum(context) + 7 * len(context)) % 97


def logprob(token: int) -> float:
    """Return the logprob of a token, exact in float32."""
    return -token / 128


def answer(prompt: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Return the complete answer to a prompt: it ends with STOP, or after `most` tokens."""
    tokens: tuple[int, ...] = ()
    while len(tokens) < most and (not tokens or tokens[-1] != STOP):
        tokens += (next_token(prompt + tokens),)
    return tokens


class SteppingEngine:
    """An engine that samples a token every `step_seconds`; it records the version of each context."""

    kv_cache_usage = 0.25
    preemptions = 0

    def __init__(self, *, version: int = 0, step_seconds: float = 0.002) -> None:
        self.version = version
        self.step_seconds = step_seconds
        self.sampled_by: dict[tuple[int, ...], set[int]] = defaultdict(set)
        """Versions that sampled the token after a context."""
        self.running: dict[str, list[tuple[int, int]]] = {}
        self.weighed: list[tuple[int, ...]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.deadly: tuple[int, ...] | None = None
        """A prompt that ends the engine."""

    async def sample(
        self, prompt_token_ids: tuple[int, ...], sampling: Sampling, *, request_id: str = ""
    ) -> Turn:
        if prompt_token_ids == self.deadly:
            self.error = EngineDied("the engine met the deadly prompt")
        tokens = self.running.setdefault(request_id, [])
        context = prompt_token_ids
        try:
            while len(tokens) < sampling.max_tokens and context[-1] != STOP:
                await asyncio.sleep(self.step_seconds)
                await self.gate.wait()
                if self.error is not None:
                    raise self.error
                self.sampled_by[context].add(self.version)
                tokens.append((next_token(context), self.version))
                context += (tokens[-1][0],)
            chunk = _chunk(tokens)
        finally:
            del self.running[request_id]
        return Turn(
            token_ids=chunk.token_ids,
            logprobs=chunk.logprobs,
            spans=chunk.spans,
            finish_reason=FinishReason.STOP if context[-1] == STOP else FinishReason.LENGTH,
        )

    def sampled(self, request_id: str, start: int) -> Chunk:
        return chunk_since(_chunk(self.running.get(request_id, [])), start)

    async def weigh(self, prompt_token_ids: tuple[int, ...], candidates: tuple[int, ...]) -> list[float]:
        self.weighed.append(prompt_token_ids)
        if prompt_token_ids == self.deadly:
            self.error = EngineDied("the engine met the deadly prompt")
        await asyncio.sleep(self.step_seconds)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [candidate / sum(candidates) for candidate in candidates]


def _chunk(tokens: list[tuple[int, int]]) -> Chunk:
    spans: list[VersionSpan] = []
    for position, (_, version) in enumerate(tokens):
        start = position
        if spans and spans[-1].version == version:
            start = spans.pop().start
        spans.append(VersionSpan(version=version, start=start, end=position + 1))
    token_ids = tuple(token for token, _ in tokens)
    return Chunk(token_ids=token_ids, logprobs=tuple(map(logprob, token_ids)), spans=tuple(spans))


@dataclass(slots=True, kw_only=True)
class RolloutServer:
    """A running rollout."""

    name: str
    engine: SteppingEngine
    served: ServedVersion
    servicer: RolloutServicer
    server: Server

    @property
    def listed(self) -> ListedRollout:
        return ListedRollout(worker_id=self.name, address=self.server.address, status=self.servicer.status())

    def serve(self, version: int) -> None:
        """Sample with another version from now on."""
        self.engine.version = version
        self.served.serve(version)

    async def kill(self) -> None:
        """End without a message."""
        await self.server.stop(grace=0)

    def freeze(self) -> None:
        """Send nothing any more, and keep all connections."""
        self.servicer._chunk_seconds = 1000.0
        self.engine.gate.clear()

    async def drain(self) -> None:
        """End as after SIGTERM."""
        await self.servicer.drain()
        await self.server.stop(grace=0)


@dataclass(slots=True, kw_only=True)
class Fleet:
    """An actor's rollouts and their servers."""

    rollouts: Rollouts
    served: ServedVersion
    metrics: Metrics
    servers: list[RolloutServer] = field(default_factory=list)

    async def add(
        self, *, version: int = 0, places: int = 8, step_seconds: float = 0.002, serving: bool = True
    ) -> RolloutServer:
        """Start a rollout, and list it."""
        engine, served = SteppingEngine(version=version, step_seconds=step_seconds), ServedVersion()
        if serving:
            served.serve(version)
        name = f"rollout-{len(self.servers)}"
        servicer = RolloutServicer(
            engine=engine,  # type: ignore[arg-type]  # it takes no weights
            served=served,
            max_groups=places,
            chunk_seconds=CHUNK_SECONDS,
            metrics=Metrics(),
            log=Log(pod=name),
        )
        server = await start_server(
            "127.0.0.1:0", lambda s: add_RolloutServicer_to_server(servicer, s), config=CONFIG.rpc
        )
        started = RolloutServer(name=name, engine=engine, served=served, servicer=servicer, server=server)
        self.servers.append(started)
        self.list()
        return started

    async def suffer(self, events: Sequence[str], *, every: float, step_seconds: float = 0.003) -> None:
        """Let the newest rollout get a version, be killed or drain, one after the other, and replace it."""
        for number, event in enumerate(events):
            await asyncio.sleep(every)
            if event == "version":
                self.servers[-1].serve(10 + number)
                continue
            await getattr(self.servers[-1], event)()
            await self.add(version=10 + number, step_seconds=step_seconds)

    def list(self, *without: RolloutServer) -> None:
        """Update the actor's rollouts as replay's list does."""
        self.rollouts.update([server.listed for server in self.servers if server not in without])


@asynccontextmanager
async def fleet(
    *,
    most_engines: int = 3,
    pipeline_depth: int = 0,
    max_staleness: int = 100,
    silence_seconds: float = SILENCE_SECONDS,
) -> AsyncIterator[Fleet]:
    """Yield an actor's end, without rollouts so far."""
    served, metrics = ServedVersion(), Metrics()
    rollouts = Rollouts(
        connect=lambda address: open_channel(address, CONFIG.rpc),
        silence_seconds=silence_seconds,
        most_engines=most_engines,
        staleness=StalenessConfig(pipeline_depth=pipeline_depth, max_staleness=max_staleness),
        served=served,
        metrics=metrics,
        log=Log(pod="actor-0"),
    )
    started = Fleet(rollouts=rollouts, served=served, metrics=metrics)
    try:
        yield started
    finally:
        await rollouts.close()
        for server in started.servers:
            server.engine.gate.set()
            await server.server.stop(grace=0)
