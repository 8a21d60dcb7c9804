"""Errors that a caller can act on, each with its gRPC status."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from slipstream.telemetry.logs import Log

RETRY_AFTER = "retry-after-ms"
"""Trailing metadata of a refusal: the retry-after hint in milliseconds."""


class SlipstreamError(Exception):
    """Base of all errors that a service reports to its caller."""

    status = grpc.StatusCode.INTERNAL

    @property
    def trailing(self) -> tuple[tuple[str, str], ...]:
        """Trailing metadata that the server sends with the error."""
        return ()


class RankFailed(SlipstreamError):
    """Another rank of the learner has an error that ends the learner."""


class InvalidRequest(SlipstreamError):
    """The request is malformed: it fails however often it is sent."""

    status = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(SlipstreamError):
    """The object that the request names does not exist."""

    status = grpc.StatusCode.NOT_FOUND


class PermissionDenied(SlipstreamError):
    """The role in the caller's certificate may not call the method."""

    status = grpc.StatusCode.PERMISSION_DENIED


class OutOfMemory(SlipstreamError):
    """Redis is full; the same request succeeds once memory is free."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED


class Busy(SlipstreamError):
    """The server's queue is full; the same request succeeds later, after `retry_after_seconds`."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds

    @property
    def trailing(self) -> tuple[tuple[str, str], ...]:
        """The retry-after hint."""
        return ((RETRY_AFTER, str(round(1000 * self.retry_after_seconds))),)


class Superseded(SlipstreamError):
    """A newer call of the same learner, or a newer learner, has replaced the caller."""

    status = grpc.StatusCode.ABORTED


class Unreachable(SlipstreamError):
    """A service does not answer; a later call may succeed."""

    status = grpc.StatusCode.UNAVAILABLE


class MessageTooLarge(Unreachable):
    """A message is larger than `rpc.max_message_mib`: it fails however often it is sent."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class Stuck(SlipstreamError):
    """A thread of this process does not return; the process must exit without waiting for it."""


def reason_of(error: SlipstreamError | grpc.aio.AioRpcError) -> str:
    """Return the text of an error, without the other fields of a gRPC error."""
    return str(error.details()) if isinstance(error, grpc.aio.AioRpcError) else str(error)


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Maps a SlipstreamError or ValueError of a servicer to its gRPC status; others stay INTERNAL.

    It logs OutOfMemory and Unreachable, which are faults of the service's surroundings and not of the caller.
    """

    def __init__(self, log: Log | None) -> None:
        self._log = log

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        if handler.unary_unary:
            return handler._replace(unary_unary=_guard_unary(handler.unary_unary, self._log))
        if handler.unary_stream:
            writes_itself = not inspect.isasyncgenfunction(handler.unary_stream)
            guard: Callable[..., Any] = _guard_unary if writes_itself else _guard_stream
            return handler._replace(unary_stream=guard(handler.unary_stream, self._log))
        return handler._replace(stream_stream=_guard_stream(handler.stream_stream, self._log))


def _guard_unary(behavior: Callable[..., Awaitable[Any]], log: Log | None) -> Callable[..., Awaitable[Any]]:
    async def guarded(request: Any, context: Any) -> Any:
        try:
            return await behavior(request, context)
        except (SlipstreamError, ValueError) as error:
            await context.abort(_status(error, log), str(error), _trailing(error))

    return guarded


def _guard_stream(
    behavior: Callable[..., AsyncIterator[Any]], log: Log | None
) -> Callable[..., AsyncIterator[Any]]:
    async def guarded(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for response in behavior(request, context):
                yield response
        except (SlipstreamError, ValueError) as error:
            await context.abort(_status(error, log), str(error), _trailing(error))

    return guarded


def _trailing(error: Exception) -> tuple[tuple[str, str], ...]:
    return error.trailing if isinstance(error, SlipstreamError) else ()


def _status(error: Exception, log: Log | None) -> grpc.StatusCode:
    if log is not None and isinstance(error, OutOfMemory | Unreachable):
        log.warning("request refused", error=str(error))
    return error.status if isinstance(error, SlipstreamError) else grpc.StatusCode.INVALID_ARGUMENT
