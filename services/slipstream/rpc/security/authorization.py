"""Refuses calls that the role in the caller's certificate does not permit."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from slipstream.rpc.errors import PermissionDenied
from slipstream.rpc.security.identity import CALLERS, InvalidIdentity, may_call, role_of
from slipstream.telemetry.logs import Log


class AuthorizationInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Runs a handler only for the roles that CALLERS lists for its method, and logs every refusal."""

    def __init__(self, *, trust_domain: str, log: Log | None) -> None:
        self._trust_domain = trust_domain
        self._log = log

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None

        def check(context: Any) -> None:
            self._check(details.method, context)

        kind = next(kind for kind in _KINDS if getattr(handler, kind))
        return handler._replace(**{kind: _guarded(getattr(handler, kind), check)})

    def _check(self, method: str, context: Any) -> None:
        """Check the caller's role. Errors: PermissionDenied, with the method and the permitted roles."""
        uris = [uri.decode(errors="replace") for uri in context.auth_context().get("peer_uri", ())]
        try:
            role = role_of(uris, trust_domain=self._trust_domain)
            reason = None if may_call(role, method) else _not_entitled(role, method)
        except InvalidIdentity as error:
            reason = f"the certificate is not one of ours: {error}"
        if reason is None:
            return
        if self._log is not None:
            who = ",".join(uris) or "nobody"
            self._log.warning("call refused", peer=context.peer(), who=who, method=method, reason=reason)
        raise PermissionDenied(reason)


_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def _not_entitled(role: str, method: str) -> str:
    entitled = ", ".join(sorted(CALLERS.get(method, ()))) or "nobody"
    return f"a {role} may not call {method}; those who may: {entitled}"


def _guarded(behavior: Callable[..., Any], check: Callable[[Any], None]) -> Callable[..., Any]:
    """Return the handler with the check before it. A stream is a generator, or a coroutine that writes."""

    async def call(request: Any, context: Any) -> Any:
        check(context)
        return await behavior(request, context)

    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
        check(context)
        async for response in behavior(request, context):
            yield response

    return stream if inspect.isasyncgenfunction(behavior) else call
