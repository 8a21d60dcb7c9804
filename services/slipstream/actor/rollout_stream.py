"""One stream to one rollout, which carries all requests of this actor to it."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

import grpc

from slipstream.records import Chunk, FinishReason, RolloutStatus, Turn, turn_of
from slipstream.rpc import errors, sampling_codec
from slipstream.rpc.channel import with_idle_timeout
from slipstream.telemetry import background, logs
from slipstream.v1 import rollout_pb2 as pb
from slipstream.v1.rollout_pb2_grpc import RolloutStub

MOST_TOKENS = 1_000_000
"""Most tokens of the requests in one message, unless a single request has more; 4 bytes each."""


NOTHING = Chunk()
LossCause = Literal["lost", "drained", "over_age"]
"""Why a rollout does not go on with a request. `over_age`: its version is so old that no token trains."""
LOSS_CAUSES: tuple[LossCause, ...] = get_args(LossCause)


class RolloutLost(errors.SlipstreamError):
    """The rollout ended, drains, is silent or over age. `chunk` has the tokens that arrived before."""

    def __init__(
        self, reason: str, chunk: Chunk = NOTHING, *, cause: LossCause = "lost", sent: bool = True
    ) -> None:
        super().__init__(reason)
        self.chunk = chunk
        self.cause = cause
        self.sent = sent
        """Whether the rollout can have received the request."""

    @property
    def suspicious(self) -> bool:
        """Whether the request itself may have ended the engine: it was sent, and not one token came back."""
        return self.sent and self.cause == "lost" and not self.chunk.token_ids


class NoPlace(errors.SlipstreamError):
    """All places of the rollout are taken; another group may enter after `retry_after_seconds`."""

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__("all places of the rollout are taken")
        self.retry_after_seconds = retry_after_seconds


class RequestRefused(errors.SlipstreamError):
    """The request is at fault; it fails however often it is sent."""


@dataclass(slots=True, eq=False)
class _Request:
    """A request without its last chunk. Its chunks are decoded together, once it ends."""

    ended: "asyncio.Future[Turn | list[float]]"
    began: Callable[[], None] | None = None
    """Called when the first tokens arrive."""
    watch: Callable[[Chunk], bool] | None = None
    """Takes each chunk, and returns whether no further one is wanted."""
    chunks: list[pb.SampleChunk] = field(default_factory=list)


class RolloutStream:
    """Sends requests to a rollout and collects their chunks. Once lost, it stays lost.

    Invariant: a request ends with its last chunk, with an error, or with RolloutLost and the chunks so far.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        silence_seconds: float,
        on_status: Callable[[RolloutStatus], None],
        on_lost: Callable[[str], None],
        log: logs.Log,
    ) -> None:
        """`on_status` is called with every message; `on_lost` once, with the reason."""
        self._silence_seconds = silence_seconds
        self._on_status = on_status
        self._on_lost = on_lost
        self._requests: dict[int, _Request] = {}
        self._numbers = itertools.count(1)
        self._outgoing = [pb.SampleRequest()]
        self._outgoing_tokens = 0
        self._due = asyncio.Event()
        self._lost: str | None = None
        self._cause: LossCause = "lost"
        self._call = RolloutStub(channel).Sample(self._messages())
        self._reader = background.BackgroundTask.begin(self._read(), "reading of a rollout's stream", log)

    @property
    def lost(self) -> bool:
        """Whether no further request can be sent."""
        return self._lost is not None

    async def sample(
        self,
        start: pb.StartSampling,
        *,
        began: Callable[[], None] | None = None,
        watch: Callable[[Chunk], bool] | None = None,
    ) -> Turn:
        """Return what a request samples; `began` is called when the first tokens arrive.

        `watch` takes each chunk; when it returns True, the rest of the request is cancelled. Errors:
        RolloutLost, NoPlace, RequestRefused, those of `watch`.
        """
        turn = await self._ask(start, began=began, watch=watch)
        assert isinstance(turn, Turn)
        return turn

    async def weigh(self, start: pb.StartSampling, *, began: Callable[[], None] | None = None) -> list[float]:
        """Return the probabilities of the candidates; `began` is never called. Errors: RolloutLost,
        RequestRefused."""
        probabilities = await self._ask(start, began=began)
        assert isinstance(probabilities, list)
        return probabilities

    def withdraw(self, reason: str) -> None:
        """Cancel all requests of a rollout over age. They end with RolloutLost and their chunks."""
        for number, request in list(self._requests.items()):
            self._outgoing[-1].cancel.append(number)
            self._end(number, RolloutLost(reason, _chunk(request), cause="over_age"))
        self._due.set()

    async def close(self) -> None:
        """End the stream; running requests end with RolloutLost."""
        self._lose("this actor closed the stream")
        await self._reader.end()

    async def _ask(
        self,
        start: pb.StartSampling,
        *,
        began: Callable[[], None] | None = None,
        watch: Callable[[Chunk], bool] | None = None,
    ) -> Turn | list[float]:
        if self._lost is not None:
            raise RolloutLost(self._lost, cause=self._cause, sent=False)
        start.id = next(self._numbers)
        request = _Request(ended=asyncio.get_running_loop().create_future(), began=began, watch=watch)
        self._requests[start.id] = request
        self._send(start)
        try:
            return await request.ended
        finally:
            if self._requests.pop(start.id, None) is not None:
                self._cancel(start.id)

    def _cancel(self, number: int) -> None:
        if not self.lost:
            self._outgoing[-1].cancel.append(number)
            self._due.set()

    def _send(self, start: pb.StartSampling) -> None:
        """Add a request to the message that goes out next, or to a further one if it would be too large."""
        self._outgoing_tokens += len(start.token_ids)
        if self._outgoing_tokens > MOST_TOKENS and self._outgoing[-1].start:
            self._outgoing.append(pb.SampleRequest())
            self._outgoing_tokens = len(start.token_ids)
        self._outgoing[-1].start.append(start)
        self._due.set()

    async def _messages(self) -> AsyncIterator[pb.SampleRequest]:
        """Yield the requests and cancellations of one turn of the event loop together, until lost.

        It must end by itself: gRPC does not end the messages of a call that the server has ended.
        """
        while True:
            await self._due.wait()
            if self._lost is not None:
                return
            self._due.clear()
            outgoing, self._outgoing, self._outgoing_tokens = self._outgoing, [pb.SampleRequest()], 0
            for message in outgoing:
                yield message

    async def _read(self) -> None:
        """Collect chunks until the stream ends, however it ends."""
        reason = "the rollout closed the stream"
        try:
            async for message in with_idle_timeout(self._call, silence_seconds=self._silence_seconds):
                self._on_status(sampling_codec.rollout_status_from_proto(message.status))
                for chunk in message.chunks:
                    self._take(chunk)
                if message.status.draining:  # the stream ends once its last chunks have arrived
                    reason, self._cause = "the rollout drains", "drained"
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name.lower()}: {error.details()}"
        finally:
            self._call.cancel()
            self._lose(reason)

    def _take(self, message: pb.SampleChunk) -> None:
        request = self._requests.get(message.id)
        if request is None:
            return  # it was cancelled
        if message.error:
            self._end(message.id, RequestRefused(message.error))
        elif message.retry_after_seconds:
            self._end(message.id, NoPlace(message.retry_after_seconds))
        elif message.probabilities:
            self._end(message.id, list(message.probabilities))
        else:
            self._add(message, request)

    def _add(self, message: pb.SampleChunk, request: _Request) -> None:
        """Add a chunk to a request, and end it with its last chunk, or when its watch has enough."""
        request.chunks.append(message)
        if request.began is not None and message.token_ids:
            request.began()
            request.began = None
        try:
            enough = request.watch is not None and request.watch(sampling_codec.chunks_from_proto([message]))
        except Exception as error:  # of one request; the others go on
            self._end(message.id, error)
            self._cancel(message.id)
            return
        if message.finish_reason:
            turn = _chunk(request)
            assert isinstance(turn, Turn)
            self._end(message.id, turn)
        elif enough:
            self._end(message.id, turn_of(_chunk(request), finish_reason=FinishReason.STOP))
            self._cancel(message.id)

    def _end(self, number: int, result: "Turn | list[float] | Exception") -> None:
        request = self._requests.pop(number)
        ended = request.ended
        if ended.done():
            return
        if isinstance(result, Exception):
            ended.set_exception(result)
        else:
            ended.set_result(result)

    def _lose(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        self._due.set()
        for number, request in list(self._requests.items()):
            self._end(number, RolloutLost(reason, _chunk(request), cause=self._cause))
        self._on_lost(reason)


def _chunk(request: _Request) -> Chunk:
    """Return the tokens of a request so far."""
    return sampling_codec.chunks_from_proto(request.chunks)
