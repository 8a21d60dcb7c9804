"""gRPC channels, and the retries of calls that failed with a transient status."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc

from slipstream.config import RpcConfig
from slipstream.rpc import errors, server
from slipstream.rpc.security import certificates, channel, loopback
from slipstream.telemetry.logs import Log

T = TypeVar("T")
TRANSIENT = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,  # by a server that stops: a cancelled task raises CancelledError here
)
TOO_LARGE = "larger than max"
"""Part of gRPC's error for a message over the size limit. It is not tried again, unlike the refusal of a busy
server, which has the same status."""
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
SILENT_SECONDS = 1.0
"""Silence of a server, while a call waits for it, after which it is pinged."""
GONE_SECONDS = 1.5
"""Deadline of the answer to a ping. After it the calls to the server end as unavailable."""
STILL_WAITING_SECONDS = 1.0
"""Interval of the empty messages of a streaming call that has nothing to send yet."""
ATTEMPTS_AT_ONE_DEADLINE = 2
"""Attempts before the deadline is doubled: a single lost answer does not mean that the server is slow."""
RECONNECTING = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3_000),  # also the timeout of one attempt to connect
    ("grpc.max_reconnect_backoff_ms", 3_000),
)
OWN_CONNECTIONS = (("grpc.use_local_subchannel_pool", 1),)
"""Channels to one address share no connection, so a new channel does not wait for an old one's backoff."""
ROUND_ROBIN = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
"""Calls go to each address of a name in turn, for example to the pods of a headless Service."""


def open_channel(
    address: str,
    config: RpcConfig,
    *,
    log: Log | None = None,
    gone_seconds: float = GONE_SECONDS,
    server_name: str | None = None,
) -> grpc.aio.Channel:
    """Return a channel to host:port with the message limits of `config`; it connects at the first call.

    `gone_seconds`: calls end as unavailable when the server has not answered a ping for so long.
    `server_name`: name that the server's certificate must have; None: the host of `address`.
    With `rpc.tls` the channel uses mutual TLS, reads renewed files, and logs why a handshake has failed.
    Errors: ValueError for port 0, which is only an address to listen on; ConfigError for plaintext beyond
    loopback, and for unusable files of `rpc.tls`.
    """
    if address.endswith(":0"):
        raise ValueError(
            f"{address} cannot be called: set replay.address, verifier.address, learner.address and, with a "
            "distillation, teacher.address, or the SLIPSTREAM_*_ADDRESS variables, to where the services "
            "listen"
        )
    loopback.refuse_plaintext(address, config)
    options: list[tuple[str, Any]] = [
        *server.channel_options(config),
        *server.keepalive(ping_seconds=SILENT_SECONDS, answer_seconds=gone_seconds),
        *RECONNECTING,
        *OWN_CONNECTIONS,
        ("grpc.service_config", ROUND_ROBIN),
    ]
    if server_name is not None and config.tls is not None:
        options.append(("grpc.ssl_target_name_override", server_name))
    if config.tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return channel.TlsChannel(
        address, certificates=certificates.Certificates(config.tls, log), options=options, log=log
    )


async def call_with_retries(what: str, call: Callable[[], Awaitable[T]], *, give_up_after: float) -> T:
    """Repeat a call with jittered exponential backoff, for at most `give_up_after` seconds.

    Only for idempotent calls. It repeats them after a transient status: unavailable, deadline exceeded,
    resource exhausted, or cancelled by a server that stops. A pause is at least as long as the server's
    retry-after hint. `what` names the call in errors.
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
                raise errors.PermissionDenied(f"{what}: {error.details()}") from error
            if error.code() not in TRANSIENT:
                raise
            if TOO_LARGE in (error.details() or ""):
                raise errors.MessageTooLarge(
                    f"{what}: {error.details()}; raise rpc.max_message_mib in every pod, or lower "
                    "rollout.group_size or rollout.max_new_tokens"
                ) from error
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                pause = FIRST_PAUSE_SECONDS  # the attempt has already waited for its deadline
            pause = max(pause, retry_after(error))
            if asyncio.get_running_loop().time() + pause > deadline:
                raise errors.Unreachable(
                    f"{what}: gave up after {give_up_after:g} s: {error.details()}"
                ) from error
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def call_with_growing_deadline(
    what: str,
    ask: Callable[[float], Awaitable[T]],
    *,
    answer_seconds: float,
    longest_seconds: float,
    give_up_after: float,
) -> T:
    """Repeat a call that usually takes milliseconds, with a short deadline that grows.

    A lost answer so costs `answer_seconds`, and a slow server is still waited for. `ask` gets the deadline of
    its attempt in seconds: `answer_seconds`, doubled after every two attempts that exceeded their deadline,
    up to `longest_seconds`. The rest is as in `call_with_retries`.
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

    return await call_with_retries(what, attempt, give_up_after=give_up_after)


async def with_idle_timeout(call: Any, *, silence_seconds: float) -> AsyncIterator[Any]:
    """Yield the messages of a streaming call, with a deadline of `silence_seconds` for each message.

    It detects a lost answer sooner than a deadline for the whole call, which would have to allow for the
    largest stream. Errors: AioRpcError with DEADLINE_EXCEEDED after a silence, and those of the call.
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
    """Return the retry-after hint of a refused call in seconds; 0 without a hint."""
    trailing: Any = error.trailing_metadata()  # the stubs declare only the type of the synchronous API
    hint = str(trailing.get(errors.RETRY_AFTER, "")) if trailing else ""
    return int(hint) / 1000 if hint.isdecimal() else 0.0
