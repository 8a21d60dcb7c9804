"""Channels, and the one way to call again after a passing failure."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc

from slipstream.config import RpcConfig
from slipstream.rpc.errors import RETRY_AFTER, MessageTooLarge, PermissionDenied, Unreachable
from slipstream.rpc.security.certificates import Certificates
from slipstream.rpc.security.channel import TlsChannel
from slipstream.rpc.security.loopback import refuse_plaintext
from slipstream.rpc.server import channel_options, keepalive
from slipstream.telemetry.logs import Log

T = TypeVar("T")
PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)
TOO_LARGE = "larger than max"
"""Said by gRPC of a message that it does not send or take, with the status of a service that is busy."""
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
SILENT_SECONDS = 1.0
"""A server that says nothing for so long, while a call waits for it, is pinged."""
GONE_SECONDS = 1.5
"""A server that does not answer a ping for so long has gone: its calls end as unavailable."""
STILL_WAITING_SECONDS = 1.0
"""A streaming call that has nothing to send yet sends an empty message this often."""
ATTEMPTS_AT_ONE_DEADLINE = 2
"""So many attempts have the same deadline before it is doubled: one lost answer is no sign of slowness."""
RECONNECTING = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3_000),  # also the longest that one connecting may take
    ("grpc.max_reconnect_backoff_ms", 3_000),
)
OWN_CONNECTIONS = (("grpc.use_local_subchannel_pool", 1),)
"""Channels to one address share no connection: a new channel does not wait out the pause of an old one."""
ROUND_ROBIN = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
"""A name with several addresses, such as a headless Service, gets calls at each of them in turn."""


def open_channel(
    address: str, config: RpcConfig, *, log: Log | None = None, gone_seconds: float = GONE_SECONDS
) -> grpc.aio.Channel:
    """A channel to host:port with the project's limits; it connects at the first call.

    Its calls end as unavailable when the server has not answered a ping for `gone_seconds`.
    With `rpc.tls` it speaks mutual TLS, takes up renewed files, and says in the log why a server refuses it
    or is refused.
    Errors: ValueError for port 0, which is an address to listen on and not one to call; ConfigError for
    plaintext beyond loopback, and for files of `rpc.tls` that cannot be used.
    """
    if address.endswith(":0"):
        raise ValueError(
            f"{address} cannot be called: set replay.address, verifier.address, learner.address and, with a "
            "distillation, teacher.address, or the SLIPSTREAM_*_ADDRESS variables, to where the services "
            "listen"
        )
    refuse_plaintext(address, config)
    options: list[tuple[str, Any]] = [
        *channel_options(config),
        *keepalive(ping_seconds=SILENT_SECONDS, answer_seconds=gone_seconds),
        *RECONNECTING,
        *OWN_CONNECTIONS,
        ("grpc.service_config", ROUND_ROBIN),
    ]
    if config.tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return TlsChannel(address, certificates=Certificates(config.tls, log), options=options, log=log)


async def call_again(what: str, call: Callable[[], Awaitable[T]], *, give_up_after: float) -> T:
    """Call until it succeeds, with jittered pauses, for at most `give_up_after` seconds.

    A pause is no shorter than the server asked for.
    Only for idempotent calls, and only after a status that may pass (unavailable, deadline, exhausted).
    Errors: Unreachable with the last status when the time is up; MessageTooLarge, PermissionDenied, and any
    other AioRpcError, at once.
    """
    deadline = asyncio.get_running_loop().time() + give_up_after
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                raise PermissionDenied(f"{what}: {error.details()}") from error
            if error.code() not in PASSING:
                raise
            if TOO_LARGE in (error.details() or ""):
                raise MessageTooLarge(
                    f"{what}: {error.details()}; raise rpc.max_message_mib in every pod, or lower "
                    "rollout.group_size or rollout.max_new_tokens"
                ) from error
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                pause = FIRST_PAUSE_SECONDS  # the wait for the answer was pause enough
            pause = max(pause, retry_after(error))
            if asyncio.get_running_loop().time() + pause > deadline:
                raise Unreachable(f"{what}: gave up after {give_up_after:g} s: {error.details()}") from error
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def ask_again(
    what: str,
    ask: Callable[[float], Awaitable[T]],
    *,
    answer_seconds: float,
    longest_seconds: float,
    give_up_after: float,
) -> T:
    """As call_again, for a call that is answered at once when all is well: a lost answer costs seconds.

    `ask` is given the deadline of its attempt: `answer_seconds`, and twice as much after every two attempts
    that were not answered in time, up to `longest_seconds`, so that what is merely slow gets through too.
    """
    unanswered = 0

    async def attempt() -> T:
        nonlocal unanswered
        doublings = unanswered // ATTEMPTS_AT_ONE_DEADLINE
        try:
            return await ask(min(answer_seconds * 2**doublings, longest_seconds))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                unanswered += 1
            raise

    return await call_again(what, attempt, give_up_after=give_up_after)


async def unbroken(call: Any, *, silence_seconds: float) -> AsyncIterator[Any]:
    """The messages of a streaming call, none of which may take longer than `silence_seconds`.

    A deadline of the whole call would have to be that of its largest answer; a lost answer is noticed sooner.
    Errors: AioRpcError with DEADLINE_EXCEEDED after a silence, and those of the call.
    """
    messages = aiter(call)
    try:
        while True:
            async with asyncio.timeout(silence_seconds):
                message = await anext(messages, None)
            if message is None:
                return
            yield message
    except TimeoutError as error:
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.DEADLINE_EXCEEDED,
            grpc.aio.Metadata(),
            grpc.aio.Metadata(),
            details=f"no message for {silence_seconds:g} s",
            debug_error_string=None,
        ) from error
    finally:
        call.cancel()


def retry_after(error: grpc.aio.AioRpcError) -> float:
    """Seconds for which a server that refused a call has enough to do; 0 when it does not say."""
    trailing: Any = error.trailing_metadata()  # its stubs know only the synchronous form
    asked = str(trailing.get(RETRY_AFTER, "")) if trailing else ""
    return int(asked) / 1000 if asked.isdecimal() else 0.0
