"""Translate errors of the Redis client into errors of `rpc.errors` that say what to do."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions

from slipstream.replay.access import Access, PasswordUnreadable
from slipstream.rpc.errors import OutOfMemory, SlipstreamError, Superseded, Unreachable

IN_A_SCRIPT = "The user executing the script can't"
WITHOUT_PASSWORD = ("Authentication required", "HELLO must be called with the client already authenticated")
SUPERSEDED = "SUPERSEDED "
"""The error code that our scripts put first, as Redis puts WRONGTYPE or NOSCRIPT."""
PASSING = ("MISCONF", "READONLY", "read only replica", "MASTERDOWN", "Link with MASTER is down", "TRYAGAIN")
"""Errors that pass without a change of ours: a full disk, a failover."""
HANGING_UP = ("closed by server", "reset by peer")


@contextmanager
def translated_errors(access: Access) -> Iterator[None]:
    """Translate errors of the Redis client into one-line errors that say what to do, without the password."""
    try:
        yield
    except (exceptions.RedisError, OSError) as error:
        translation = _translated(error, access)
        if translation is None:
            raise
        raise translation from error


def _translated(error: Exception, access: Access) -> SlipstreamError | None:
    """Return the translation; None for a bug of ours in a script or a call."""
    match error:
        case PasswordUnreadable():
            return Unreachable(f"{_redis(access)} wants a password, and replay.redis_password_file {error}")
        case exceptions.AuthenticationError():
            return Unreachable(f"{_redis(access)} {_login_failure(error, access)}")
        case exceptions.ResponseError():
            return _of_response(error, access)
        case (
            exceptions.ConnectionError()
            | exceptions.TimeoutError()
            | exceptions.InvalidResponse()
            | OSError()
        ):
            return Unreachable(f"{_redis(access)} {_connection_failure(error, access)}")
    return None


def _login_failure(error: Exception, access: Access) -> str:
    if any(text in str(error) for text in WITHOUT_PASSWORD):
        return "wants a password; set replay.redis_username and replay.redis_password_file"
    return (
        f"refused the login of user {access.shown_user} ({_line(error)}); does the password in "
        "replay.redis_password_file belong to replay.redis_username, and is that user on in Redis' ACL?"
    )


def _of_response(error: exceptions.ResponseError, access: Access) -> SlipstreamError | None:
    text = str(error)
    if text.startswith(SUPERSEDED):
        return Superseded(text.removeprefix(SUPERSEDED))
    # For a script, Redis 7 reports the code OOM, and Redis 6.2 an ERR with this text.
    if isinstance(error, exceptions.OutOfMemoryError) or "OOM command not allowed" in text:
        return OutOfMemory(
            f"{_redis(access)} has reached maxmemory and refused the write; nothing was changed. "
            "Raise its maxmemory, or lower staleness.pipeline_depth so that fewer groups are buffered"
        )
    if isinstance(error, exceptions.NoPermissionError) or IN_A_SCRIPT in text:
        return Unreachable(
            f"{_redis(access)} does not let user {access.shown_user} do what replay needs ({_line(error)}); "
            "give the user the rules of deploy/redis/users.acl.template"
        )
    if any(code in text for code in PASSING):
        return Unreachable(f"{_redis(access)} takes no commands for now ({_line(error)})")
    return None


def _connection_failure(error: Exception, access: Access) -> str:
    if access.authority is not None and not access.authority.is_file():
        return f"has to be checked, but there is no file {access.authority} (replay.redis_authority)"
    fault = next((cause for cause in _causes(error) if isinstance(cause, ssl.SSLError)), None)
    if isinstance(fault, ssl.SSLCertVerificationError):
        return (
            f"showed a certificate that is not to be trusted ({fault.verify_message}); did the authority in "
            "replay.redis_authority sign it, is it still valid, and does it name the host?"
        )
    if fault is not None:
        return f"does not speak TLS as expected ({_line(fault)}); is this its TLS port, or is it redis://?"
    if isinstance(error, exceptions.InvalidResponse) or any(text in str(error) for text in HANGING_UP):
        return (
            f"hung up ({_line(error)}); is it running, and if it speaks TLS, does the address say rediss://?"
        )
    return f"does not answer ({_line(error)}); is it running, and is replay.redis_url right?"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _redis(access: Access) -> str:
    return f"Redis at {access.shown_url}"


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
