"""Fakes for tests of the rollout: an engine without a model, and real gRPC services with scripted answers."""

import asyncio
import functools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
from slipstream.config import RunConfig, parse_config
from slipstream.records import FinishReason, Group, Lease, Prompt, Sampling, TopLogprobs, Turn, VersionSpan
from slipstream.rpc import codec, replay_codec
from slipstream.rpc.channel import open_channel
from slipstream.rpc.server import start_server
from slipstream.telemetry.metrics import Metrics
from slipstream.v1 import learner_pb2, replay_pb2, types_pb2, verifier_pb2
from slipstream.v1.learner_pb2_grpc import FleetServicer
from slipstream.v1.replay_pb2_grpc import ReplayServicer
from slipstream.v1.verifier_pb2_grpc import VerifierServicer
from slipstream.weights.group import Rendezvous, TransferError
from slipstream.weights.manifest import Manifest

LIMIT_SECONDS = 30.0


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test in its own event loop, with a time limit."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(_within_limit(test(*arguments, **named)))

    return run


async def _within_limit(play: Awaitable[None]) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        await play


async def until(condition: Callable[[], object], *, seconds: float = 10.0) -> None:
    """Wait until `condition` returns a true value."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the code under test sets no event
            await asyncio.sleep(0.005)


def turn(
    tokens: Iterable[int],
    *spans: tuple[int, int],
    finish: FinishReason = FinishReason.STOP,
    logprob: float = -0.5,
) -> Turn:
    """Return a turn with spans of (version, tokens)."""
    token_ids = tuple(tokens)
    version_spans, start = [], 0
    for version, length in spans:
        version_spans.append(VersionSpan(version=version, start=start, end=start + length))
        start += length
    return Turn(
        token_ids=token_ids,
        logprobs=(logprob,) * len(token_ids),
        spans=tuple(version_spans),
        finish_reason=finish,
    )


def prompt(index: int = 0, *, text: str | None = None) -> Prompt:
    """Return a prompt; that of index 7 is "7+7="."""
    question = f"{index}+{index}=" if text is None else text
    return Prompt(prompt_id=f"p{index}", task="made up", answer=str(2 * index), text=question)


def lease(index: int, *, group_size: int = 2, seconds: float = 60.0, text: str | None = None) -> Lease:
    """Return the lease of one prompt."""
    return Lease(
        group_id=f"g{index}",
        lease_epoch=1,
        dispatch_index=index,
        prompt=prompt(index, text=text),
        group_size=group_size,
        seconds=seconds,
    )


class FakeEngine:
    """Samples at once, or when the event of the prompt in `gates` is set; records its calls in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.rendezvous: list[Rendezvous] = []
        self.requests: list[tuple[int, ...]] = []
        self.weighed: list[tuple[int, ...]] = []
        self.odds = [0.5, 0.5]
        self.cancelled: list[tuple[int, ...]] = []
        self.gates: dict[tuple[int, ...], asyncio.Event] = {}
        self.errors: dict[str, list[BaseException]] = {}
        self.receiving = asyncio.Event()
        self.receiving.set()
        self.version = 0
        self.computed: list[float] | None = None
        """Logprobs of a probe."""
        self.probed: list[tuple[int, ...]] = []
        self.probing = asyncio.Event()
        """Set when a probe may be answered."""
        self.probing.set()
        self.loading_in_full = asyncio.Event()
        self.loading_in_full.set()
        self.warm = False
        self.kept = -1
        """Version beside the weights."""
        self.bases: list[int] = []
        """Base of each version that was staged."""
        self.keys: list[bytes] = []
        """Key of each version that arrived."""

    def hold(self, prompt_token_ids: tuple[int, ...]) -> asyncio.Event:
        """Make requests of this prompt wait until the returned event is set."""
        return self.gates.setdefault(prompt_token_ids, asyncio.Event())

    def fail(self, call: str, error: BaseException) -> None:
        """Make the next call of this name raise `error`."""
        self.errors.setdefault(call, []).append(error)

    kv_cache_usage = 0.0
    preemptions = 0

    async def sample(
        self, prompt_token_ids: tuple[int, ...], sampling: Sampling, *, request_id: str = ""
    ) -> Turn:
        self.requests.append(prompt_token_ids)
        self._raise("sample")
        try:
            if prompt_token_ids in self.gates:
                await self.gates[prompt_token_ids].wait()
        except asyncio.CancelledError:
            self.cancelled.append(prompt_token_ids)
            raise
        sampled = turn([5, 6, 7], (self.version, 3))
        if not sampling.top_logprobs:
            return sampled
        nothing = bytes(4 * 3 * sampling.top_logprobs)
        top = TopLogprobs(top_k=sampling.top_logprobs, ids=nothing, logprobs=nothing)
        return replace(sampled, top_logprobs=top)

    async def weigh(self, prompt_token_ids: tuple[int, ...], candidates: tuple[int, ...]) -> list[float]:
        self.weighed.append(prompt_token_ids)
        self._raise("weigh")
        return self.odds

    async def logprobs(self, token_ids: tuple[int, ...]) -> tuple[list[float], int] | None:
        self.probed.append(token_ids)
        await self.probing.wait()
        return None if self.computed is None else (self.computed, self.version)

    async def pause(self) -> None:
        self._note("pause")

    async def warm_up(self) -> None:
        self._raise("warm_up")
        self.warm = True

    async def form_group(self, rendezvous: Rendezvous) -> None:
        self.rendezvous.append(rendezvous)
        self._note("form_group")

    async def base_version(self) -> int:
        return self.kept

    async def stage(
        self, manifest: Manifest, version: int, *, base_version: int = -1, key: bytes = b""
    ) -> None:
        self._note("stage")
        self.bases.append(base_version)
        self.keys.append(key)
        while not self.receiving.is_set():
            await asyncio.sleep(0.005)
            if self.events[-1] == "leave_group":
                raise TransferError("the group was closed")

    async def load_in_full(self) -> None:
        self._note("load in full")
        await self.loading_in_full.wait()

    async def leave_group(self) -> None:
        self._note("leave_group")

    async def receive(self, manifest: Manifest, version: int, *, key: bytes = b"") -> None:
        self.keys.append(key)
        await self.receiving.wait()
        self._note("receive")

    async def commit(self, version: int) -> None:
        self._note("commit")
        self.version = version

    async def resume(self) -> None:
        self._note("resume")

    async def close(self) -> None:
        self._note("close")

    def _note(self, call: str) -> None:
        self.events.append(call)
        self._raise(call)

    def _raise(self, call: str) -> None:
        if self.errors.get(call):
            raise self.errors[call].pop(0)


@dataclass(slots=True)
class FakeReplay(ReplayServicer):
    """Grants `leases` in order and records all calls. A status in `refusals` answers the next call."""

    leases: deque[Lease] = field(default_factory=deque)
    inserted: list[Group] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    beats: list[set[tuple[str, int]]] = field(default_factory=list)
    """The leases that each heartbeat named."""
    failures: list[str] = field(default_factory=list)
    taken_away: set[str] = field(default_factory=set)
    """Groups that the next heartbeat reports as lost."""
    lease_requests: list[replay_pb2.LeasePromptsRequest] = field(default_factory=list)
    refusals: dict[str, list[grpc.StatusCode]] = field(default_factory=dict)
    outcome: int = replay_pb2.INSERT_OUTCOME_ACCEPTED
    late: asyncio.Event | None = None
    """If not None, lease requests are answered once this is set."""

    async def LeasePrompts(
        self, request: replay_pb2.LeasePromptsRequest, context: Any
    ) -> replay_pb2.LeasePromptsResponse:
        self.lease_requests.append(request)
        if self.late is not None:
            await self.late.wait()
        await self._refuse("lease", context)
        if not self.leases:
            await asyncio.sleep(min(request.wait_seconds, 0.02))
        count = min(request.max_prompts, len(self.leases))
        leases = [replay_codec.lease_to_proto(self.leases.popleft()) for _ in range(count)]
        return replay_pb2.LeasePromptsResponse(leases=leases)

    async def InsertGroup(
        self, request: replay_pb2.InsertGroupRequest, context: Any
    ) -> replay_pb2.InsertGroupResponse:
        await self._refuse("insert", context)
        self.inserted.append(codec.group_from_proto(types_pb2.Group.FromString(request.group)))
        return replay_pb2.InsertGroupResponse(outcome=self.outcome)

    async def RenewLeases(
        self, request: replay_pb2.RenewLeasesRequest, context: Any
    ) -> replay_pb2.RenewLeasesResponse:
        await self._refuse("renew", context)
        self.beats.append({(ref.group_id, ref.lease_epoch) for ref in request.leases})
        self.failures.append(request.scoring_failure)
        lost = [ref for ref in request.leases if ref.group_id in self.taken_away]
        return replay_pb2.RenewLeasesResponse(lost=lost)

    async def ReturnPrompts(
        self, request: replay_pb2.ReturnPromptsRequest, context: Any
    ) -> replay_pb2.ReturnPromptsResponse:
        await self._refuse("return", context)
        self.returned += [ref.group_id for ref in request.leases]
        self.faults |= {ref.group_id: request.fault for ref in request.leases if request.fault}
        return replay_pb2.ReturnPromptsResponse(returned=len(request.leases))

    async def _refuse(self, method: str, context: Any) -> None:
        if self.refusals.get(method):
            await context.abort(self.refusals[method].pop(0), f"{method} refused by the test")


@dataclass(slots=True)
class FakeVerifier(VerifierServicer):
    """Scores every answer with 1, except where the test says otherwise."""

    requests: list[verifier_pb2.ScoreRequest] = field(default_factory=list)
    refusals: list[grpc.StatusCode] = field(default_factory=list)
    always: grpc.StatusCode | None = None
    errors_on_first_try: set[int] = field(default_factory=set)
    steps: list[types_pb2.StepReward] = field(default_factory=list)
    """Steps of the reward of every answer."""

    async def Score(self, request: verifier_pb2.ScoreRequest, context: Any) -> verifier_pb2.ScoreResponse:
        self.requests.append(request)
        status = self.always or (self.refusals.pop(0) if self.refusals else None)
        if status is not None:
            await context.abort(status, "score refused by the test")
        first = len(self.requests) == 1
        return verifier_pb2.ScoreResponse(
            vectors=[
                verifier_pb2.RewardVector(
                    rewards=[_reward(error=first and index in self.errors_on_first_try, steps=self.steps)]
                )
                for index in range(len(request.answers))
            ]
        )


def _reward(*, error: bool, steps: list[types_pb2.StepReward]) -> types_pb2.Reward:
    outcome = types_pb2.OUTCOME_ERROR if error else types_pb2.OUTCOME_SCORE
    value = 0.0 if error else 1.0
    return types_pb2.Reward(name="exact_match", value=value, outcome=outcome, steps=steps)


class Stream:
    """The learner's end of the stream of one rollout."""

    def __init__(self, join: learner_pb2.JoinFleet) -> None:
        self.join = join
        self.outbox: asyncio.Queue[learner_pb2.LearnerMessage | None] = asyncio.Queue()
        self.inbox: asyncio.Queue[learner_pb2.WorkerMessage] = asyncio.Queue()

    def tell(self, **message: Any) -> None:
        self.outbox.put_nowait(learner_pb2.LearnerMessage(**message))

    def cut(self) -> None:
        """End the stream from the learner's side."""
        self.outbox.put_nowait(None)

    async def answer(self) -> tuple[str, Any]:
        """Return the kind and the content of the rollout's next message."""
        message = await asyncio.wait_for(self.inbox.get(), 10)
        kind = message.WhichOneof("message")
        return kind, getattr(message, kind)


class FakeLearner(FleetServicer):
    """Accepts every rollout, or refuses it with the status `refusal`; the test sends the messages."""

    def __init__(self) -> None:
        self.streams: asyncio.Queue[Stream] = asyncio.Queue()
        self.refusal: tuple[grpc.StatusCode, str] | None = None

    async def joined(self) -> Stream:
        """Return the next stream that a rollout opens."""
        return await asyncio.wait_for(self.streams.get(), 10)

    async def Join(
        self, request_iterator: AsyncIterator[learner_pb2.WorkerMessage], context: Any
    ) -> AsyncIterator[learner_pb2.LearnerMessage]:
        first = await anext(aiter(request_iterator))
        if self.refusal is not None:
            await context.abort(*self.refusal)
        stream = Stream(first.join)
        reader = asyncio.create_task(self._read(request_iterator, stream))
        self.streams.put_nowait(stream)
        try:
            while (message := await stream.outbox.get()) is not None:
                yield message
        finally:
            reader.cancel()

    async def _read(self, messages: AsyncIterator[learner_pb2.WorkerMessage], stream: Stream) -> None:
        async for message in messages:
            stream.inbox.put_nowait(message)


def small_config(**sections: Any) -> RunConfig:
    """Return a configuration with waits that are short enough for tests."""
    return parse_config(
        {
            "verifier": {"timeout_seconds": 0.3, "retries": 1},
            "rpc": {"timeout_seconds": 2.0},
            "replay": {"lease_seconds": 2.0},
            **sections,
        }
    )


@asynccontextmanager
async def served_by(
    register: Callable[[grpc.aio.Server], None], config: RunConfig, address: str = "127.0.0.1:0"
) -> AsyncIterator[grpc.aio.Channel]:
    """Yield a channel to a real server with these services."""
    server = await start_server(address, register, config=config.rpc)
    async with open_channel(server.address, config.rpc) as channel:
        yield channel
    await server.stop(grace=0)


def metric(metrics: Metrics, name: str, **labels: str) -> float:
    """Return the value of a counter, of a gauge, or of the sum or count of a histogram."""
    return metrics.registry.get_sample_value(f"slipstream_{name}", labels) or 0.0
