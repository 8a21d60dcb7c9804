"""The errors that a caller can act on, and their gRPC status."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from slipstream.telemetry.logs import Log

RETRY_AFTER = "retry-after-ms"
"""Trailing metadata of a refusal: for how long the server has enough to do."""


class SlipstreamError(Exception):
    """Base of every error that crosses a service boundary."""

    status = grpc.StatusCode.INTERNAL

    @property
    def trailing(self) -> tuple[tuple[str, str], ...]:
        """Trailing metadata of the answer to the call."""
        return ()


class InvalidRequest(SlipstreamError):
    """The request cannot be right, now or later."""

    status = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(SlipstreamError):
    """The named thing does not exist."""

    status = grpc.StatusCode.NOT_FOUND


class PermissionDenied(SlipstreamError):
    """The caller's certificate does not entitle it to the call."""

    status = grpc.StatusCode.PERMISSION_DENIED


class OutOfMemory(SlipstreamError):
    """The store is full; freeing memory makes the same request succeed."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED


class Busy(SlipstreamError):
    """There is as much to do as may wait; the same request succeeds when it comes again later."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds

    @property
    def trailing(self) -> tuple[tuple[str, str], ...]:
        """When to come again, in milliseconds."""
        return ((RETRY_AFTER, str(round(1000 * self.retry_after_seconds))),)


class Superseded(SlipstreamError):
    """A newer call of the same learner, or another learner, has taken the caller's place."""

    status = grpc.StatusCode.ABORTED


class Unreachable(SlipstreamError):
    """A service that is needed does not answer; it may come back."""

    status = grpc.StatusCode.UNAVAILABLE


class MessageTooLarge(Unreachable):
    """A message over `rpc.max_message_mib`: nobody ever gets it, however often it is sent."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class Stuck(SlipstreamError):
    """A thread of this process will never return; the process ends without waiting for it."""


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Turns a SlipstreamError or ValueError of a servicer into its gRPC status; the rest stays INTERNAL.

    What the service itself suffers from, a full or unreachable store, is logged by it at once.
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
