"""The service of a rollout: actors send token ids, and get sampled tokens in chunks.

    Sample (one stream for each actor)
      reader ─▶ one task for each request ─▶ engine
      writer ◀── every rollout.chunk_seconds: new tokens of all requests, status
             ◀── when requests end: their last tokens, status

A place is room for one group: the requests of a group share it. A request of a further group is refused with
a retry-after hint while all places are taken. The turns of an episode stay with their prefix cache: a group
that has had a place gets one for its next turn, also if others have taken all places meanwhile.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from slipstream.records import Chunk, RolloutStatus, Sampling
from slipstream.rollout.engine import Engine, EngineDied
from slipstream.rollout.places import Places
from slipstream.rpc import sampling_codec
from slipstream.rpc.errors import Unreachable
from slipstream.served_version import ServedVersion
from slipstream.telemetry.background import BackgroundTask
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.v1 import rollout_pb2 as pb
from slipstream.v1 import rollout_pb2_grpc

DRAIN_SECONDS = 2.0
"""Longest wait for the last chunks of a rollout that stops."""
REMEMBERED_GROUPS = 4096
"""Groups that have had a place are remembered, up to this number."""
LARGEST_MESSAGE_BYTES = 4 * 1024 * 1024
"""Chunks that together are larger go out in several messages."""


@dataclass(slots=True, eq=False)
class _Request:
    """One running request of an actor's stream."""

    start: pb.StartSampling
    engine_id: str
    sent: int = 0
    """Tokens that have been sent."""
    task: BackgroundTask[None] | None = None
    began: bool = False
    """Whether the task has begun to run. One that is cancelled before does not run at all."""


class RolloutServicer(rollout_pb2_grpc.RolloutServicer):
    """Samples for actors. Invariant: each token is sent once, with its logprob and its version."""

    def __init__(
        self,
        *,
        engine: Engine,
        served: ServedVersion,
        max_groups: int,
        chunk_seconds: float,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._engine = engine
        self._served = served
        self._places = Places(max_groups)
        self._chunk_seconds = chunk_seconds
        self._metrics = metrics
        self.log = log
        self._streams: set[_Stream] = set()
        self._groups: Counter[str] = Counter()
        self._engine_ids = (f"sample-{number}" for number in itertools.count(1))
        self._entered: dict[str, None] = {}
        """Groups that have had a place, the latest last."""
        self._draining = False
        self._all_streams_ended = asyncio.Event()
        self._all_streams_ended.set()
        self._died: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def groups_running(self) -> int:
        """Groups that are being sampled, of all actors."""
        return len(self._groups)

    def status(self) -> RolloutStatus:
        """Return what this rollout serves, and how much more it takes."""
        takes = self._served.serving and not self._draining
        return RolloutStatus(
            serving_version=self._served.version,
            serving=self._served.serving,
            places=self._places_now() if takes else 0,
            groups_running=self.groups_running,
            kv_cache_usage=self._engine.kv_cache_usage,
            draining=self._draining,
        )

    async def watch_engine(self) -> None:
        """Wait until cancelled. Errors: EngineDied, as soon as a request meets the end of the engine."""
        await self._died

    async def drain(self) -> None:
        """Send the tokens of all requests, and end all streams: actors continue them at other rollouts."""
        self._draining = True
        for stream in self._streams:
            stream.due.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._all_streams_ended.wait()

    async def Sample(
        self, request_iterator: AsyncIterator[pb.SampleRequest], context: Any
    ) -> AsyncIterator[pb.SampleResponse]:
        """Serve the requests of one actor until it leaves, or until this rollout drains."""
        stream = _Stream(self)
        self._streams.add(stream)
        self._all_streams_ended.clear()
        context.add_done_callback(lambda _: self._end(stream))
        reader = BackgroundTask.begin(stream.read(request_iterator), "reading of an actor's stream", self.log)
        clock = asyncio.get_running_loop().time
        chunks_at = clock()
        try:
            while not stream.left:
                draining, died = self._draining, self._died.done()
                if draining:
                    await _let_finished_requests_end()
                if draining or died or clock() >= chunks_at:
                    messages, chunks_at = stream.messages(), clock() + self._chunk_seconds
                else:
                    messages = stream.last_messages()
                for message in messages:
                    yield message
                if draining:
                    return
                if died:
                    raise Unreachable("the engine of this rollout died")
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(chunks_at):
                        await stream.due.wait()
                stream.due.clear()
        finally:
            reader.cancel()
            self._end(stream)

    def _end(self, stream: "_Stream") -> None:
        """Abort the requests of a stream; a further call changes nothing."""
        stream.close()
        self._streams.discard(stream)
        if not self._streams:
            self._all_streams_ended.set()

    def takes(self, group_id: str) -> bool:
        """Return whether a request of this group may start."""
        if self._draining:
            return False
        return not group_id or group_id in self._entered or len(self._groups) < self._places_now()

    def _places_now(self) -> int:
        return self._places.follow(
            taken=self.groups_running,
            cache_use=self._engine.kv_cache_usage,
            preemptions=self._engine.preemptions,
        )

    @property
    def chunk_seconds(self) -> float:
        """Longest time between two messages of a stream."""
        return self._chunk_seconds

    def enter(self, group_id: str) -> None:
        """Count a request of a group as running."""
        if group_id:
            self._entered.pop(group_id, None)
            self._entered[group_id] = None
            if len(self._entered) > REMEMBERED_GROUPS:
                del self._entered[next(iter(self._entered))]
            self._groups[group_id] += 1
            self._metrics.set("groups_running", len(self._groups))

    def leave(self, group_id: str) -> None:
        """Count a request of a group as ended."""
        if group_id:
            self._groups[group_id] -= 1
            if not self._groups[group_id]:
                del self._groups[group_id]
            self._metrics.set("groups_running", len(self._groups))

    def next_engine_id(self) -> str:
        """Return a name for a request that no other request of the engine has."""
        return next(self._engine_ids)

    def sampled(self, request: _Request) -> Chunk:
        """Return the tokens of a running request that were not sent yet."""
        return self._engine.sampled(request.engine_id, request.sent)

    async def run(self, request: _Request) -> pb.SampleChunk:
        """Run a request to its end; return its last chunk. Errors: EngineDied."""
        start = request.start
        token_ids = tuple(start.token_ids)
        try:
            if start.candidates:
                probabilities = await self._engine.weigh(token_ids, tuple(start.candidates))
                return pb.SampleChunk(id=start.id, probabilities=probabilities)
            turn = await self._engine.sample(token_ids, _sampling_of(start), request_id=request.engine_id)
        except EngineDied as error:
            if not self._died.done():
                self._died.set_exception(error)
            raise
        except ValueError as error:
            return pb.SampleChunk(id=start.id, error=f"the engine refuses the request: {error}")
        return sampling_codec.chunk_to_proto(start.id, turn.since(request.sent))

    def count_tokens(self, tokens: int) -> None:
        """Count tokens that are about to be sent."""
        self._metrics.count("tokens_generated_total", tokens)


class _Stream:
    """The requests of one actor."""

    def __init__(self, service: RolloutServicer) -> None:
        self._service = service
        self._requests: dict[int, _Request] = {}
        self._ended: list[pb.SampleChunk] = []
        """The last chunks of requests that have ended."""
        self.due = asyncio.Event()
        """Set when there is something to send at once."""
        self.left = False
        """Whether the actor has closed the stream."""

    async def read(self, messages: AsyncIterator[pb.SampleRequest]) -> None:
        """Start and cancel requests until the actor closes the stream."""
        try:
            async for message in messages:
                for start in message.start:
                    self._begin(start)
                for number in message.cancel:
                    self._cancel(number)
        finally:
            self.left = True
            self.due.set()

    def messages(self) -> list[pb.SampleResponse]:
        """Return the new tokens of all requests, in one message or, if they are large, in several."""
        return self._messages(self._new_chunks())

    def last_messages(self) -> list[pb.SampleResponse]:
        """Return the last tokens of the requests that have ended, in as many messages as they need."""
        return self._messages([])

    def _messages(self, chunks: list[pb.SampleChunk]) -> list[pb.SampleResponse]:
        ended, self._ended = self._ended, []
        chunks = [*ended, *chunks]
        self._service.count_tokens(sum(len(chunk.token_ids) for chunk in chunks))
        status = sampling_codec.rollout_status_to_proto(self._service.status())
        response = pb.SampleResponse(status=status)
        responses, size = [response], 0
        for chunk in chunks:
            chunk_bytes = chunk.ByteSize()
            if size and size + chunk_bytes > LARGEST_MESSAGE_BYTES:
                response, size = pb.SampleResponse(status=status), 0
                responses.append(response)
            response.chunks.append(chunk)
            size += chunk_bytes
        return responses

    def close(self) -> None:
        """Abort all requests."""
        self.left = True
        self.due.set()
        for number in list(self._requests):
            self._cancel(number)

    def _new_chunks(self) -> list[pb.SampleChunk]:
        """Return the tokens of running requests that were not sent yet."""
        chunks = []
        for number, request in self._requests.items():
            chunk = self._service.sampled(request)
            if chunk.token_ids:
                request.sent += len(chunk.token_ids)
                chunks.append(sampling_codec.chunk_to_proto(number, chunk))
        return chunks

    def _begin(self, start: pb.StartSampling) -> None:
        if start.id in self._requests:
            self._end(pb.SampleChunk(id=start.id, error="a request with this id is running"))
        elif not self._service.takes(start.group_id):
            self._end(pb.SampleChunk(id=start.id, retry_after_seconds=self._service.chunk_seconds))
        else:
            self._service.enter(start.group_id)
            request = _Request(start=start, engine_id=self._service.next_engine_id())
            self._requests[start.id] = request
            request.task = BackgroundTask.begin(self._run(request), "sampling", self._service.log)

    async def _run(self, request: _Request) -> None:
        number = request.start.id
        request.began = True
        try:
            last = await self._service.run(request)
            if self._requests.pop(number, None) is not None:
                self._end(last)
        except EngineDied:
            self.due.set()  # the stream ends with an error
        except Exception as error:
            if self._requests.pop(number, None) is not None:
                self._end(pb.SampleChunk(id=number, error=f"the engine failed: {error}"))
            raise
        finally:
            self._service.leave(request.start.group_id)

    def _end(self, last: pb.SampleChunk) -> None:
        """Send the last chunk of a request."""
        self._ended.append(last)
        self.due.set()

    def _cancel(self, number: int) -> None:
        request = self._requests.pop(number, None)
        if request is not None and request.task is not None:
            request.task.cancel()
            if not request.began:
                self._service.leave(request.start.group_id)


async def _let_finished_requests_end() -> None:
    """Let requests whose last output is in this process become last chunks, so that no token of them is lost.

    An engine forgets a request when it has put the output into a queue, and one turn of the event loop later
    the request's task has taken it out.
    """
    for _ in range(3):
        await asyncio.sleep(0)


def _sampling_of(start: pb.StartSampling) -> Sampling:
    """Return how to sample a request. Errors: ValueError."""
    if start.max_tokens < 1 or not start.temperature > 0:
        raise ValueError(
            f"max_tokens is {start.max_tokens} and temperature {start.temperature:g}; both must be above 0"
        )
    return Sampling(
        temperature=start.temperature,
        max_tokens=start.max_tokens,
        top_logprobs=start.top_logprobs,
        seed=start.seed if start.HasField("seed") else None,
    )


def register(server: grpc.aio.Server, servicer: RolloutServicer) -> None:
    """Add the service to a server."""
    rollout_pb2_grpc.add_RolloutServicer_to_server(servicer, server)
