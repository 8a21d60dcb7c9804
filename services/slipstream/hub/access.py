"""Calls to the hub: who we are, what is tried again, and what each failure means for a reader."""

import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from slipstream.config.hub import HubAccess
from slipstream.config.paths import located

Result = TypeVar("Result")

ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.5
"""Doubled after each attempt: about eight seconds in all."""
BUSY = (408, 429, 500, 502, 503, 504)


class HubError(ValueError):
    """The hub did not give what was asked for; the message says what to do."""


def library() -> Any:
    """The huggingface_hub package, telling nobody about itself. Errors: HubError when it is not installed."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError as error:
        raise HubError(
            "the hub needs huggingface_hub; install `slipstream[learner]` or `slipstream[datasets]`"
        ) from error
    return huggingface_hub


def token_of(access: HubAccess) -> str | None:
    """The token in `token_file`; None leaves it to the library. Errors: HubError when it cannot be read."""
    if access.token_file is None:
        return None
    try:
        token = access.token_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise HubError(f"token_file {located(access.token_file)} cannot be read: {error.strerror}") from error
    if not token:
        raise HubError(f"token_file {access.token_file} is empty; write an access token of the hub into it")
    return token


def is_offline(access: HubAccess) -> bool:
    """Whether the configuration or the environment forbids calls."""
    return access.offline or bool(library().constants.HF_HUB_OFFLINE)


def persistent(
    call: Callable[[], Result], *, what: str, access: HubAccess, attempts: int = ATTEMPTS
) -> Result:
    """The result of a call to the hub, tried again while the network or the hub fails for a moment.

    Files that were loaded whole are not loaded again. Errors: HubError.
    """
    for attempt in range(attempts):
        try:
            return call()
        except Exception as error:  # sorted by what the reader can do; unknown ones go on
            if not _passes(error) or attempt == attempts - 1:
                message = explained(error, what=what, access=access, attempts=attempts)
                if message is None:
                    raise
                raise HubError(message) from error
        time.sleep(FIRST_PAUSE_SECONDS * 2**attempt)
    raise AssertionError("unreachable")


def explained(error: Exception, *, what: str, access: HubAccess, attempts: int) -> str | None:
    """What a failure of the library means; None for an error that is not of the hub or the network."""
    errors = library().errors
    given = "HF_TOKEN or token_file" if access.token_file is None else f"the token in {access.token_file}"
    if isinstance(error, errors.GatedRepoError):
        return f"{what} is gated: accept its terms on its page, and check {given}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{what} has no revision {access.revision!r}; correct `revision`, or leave it out for main"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{what} is neither a directory here nor on the hub, or it is private: correct the id, or give a "
            f"token that may read it ({given})"
        )
    if isinstance(error, errors.HfHubHTTPError) and _status(error) in (401, 403):
        return f"the hub refused to give {what} (status {_status(error)}): check {given}"
    if isinstance(error, (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError)) and is_offline(
        access
    ):
        return (
            f"{what} is not complete in the cache ({access.cache_dir or 'of HF_HOME'}), and offline mode is "
            "on: load it once with a connection, or set offline: false and unset HF_HUB_OFFLINE"
        )
    if _untrusted(error):
        return (
            f"{what} was not loaded: the certificate of the hub, or of a proxy before it, is signed by "
            "nobody who is trusted here; name a file with the authorities in the variable SSL_CERT_FILE "
            "(in the chart: model.download.authority)"
        )
    if _passes(error):
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return (
            f"the hub did not answer for {what} after {attempts} attempts ({reason[0]}): check the network, "
            f"HF_ENDPOINT and proxies, and start again: files that were loaded whole are kept{_meant(what)}"
        )
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.FileMetadataError)):
        return f"{what} could not be loaded: {str(error).strip().splitlines()[0]}"
    return None


def _passes(error: BaseException | None) -> bool:
    """Whether the failure may be over in a moment: the network's, or a hub that is busy."""
    import httpx2  # what huggingface_hub speaks through

    errors = library().errors
    if isinstance(error, errors.OfflineModeIsEnabled) or _untrusted(error):
        return False
    if isinstance(error, errors.HfHubHTTPError):
        return _status(error) in BUSY
    if isinstance(error, (httpx2.TransportError, ConnectionError, TimeoutError)):
        return True
    if isinstance(error, errors.LocalEntryNotFoundError):  # the library's answer to a failed request
        return _passes(error.__cause__ or error.__context__)
    return type(error) is OSError and "Consistency check failed" in str(error)


def _untrusted(error: BaseException | None) -> bool:
    """Whether the failure, or what it came from, is a certificate that is not trusted."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return error is not None


def _meant(what: str) -> str:
    """What else an id may have been meant for."""
    if not what.startswith("model.path"):
        return ""
    return f". If a directory was meant: {Path.cwd()} has none of that name"


def _status(error: Any) -> int | None:
    return getattr(error.response, "status_code", None)
