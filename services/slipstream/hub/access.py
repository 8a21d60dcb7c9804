"""Calls to the hub: the access token, retries, and an error message with a remedy for each failure."""

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
"""Doubled after each attempt; the pauses add up to about eight seconds."""
BUSY = (408, 429, 500, 502, 503, 504)


class HubError(ValueError):
    """The hub did not deliver a model or data set; the message names a remedy."""


def library() -> Any:
    """Import huggingface_hub with its telemetry off. Errors: HubError when it is not installed."""
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
    """Return the token in `token_file`; None leaves it to the library. Errors: HubError for a bad file."""
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
    """Return whether the configuration or the environment forbids calls to the hub."""
    return access.offline or bool(library().constants.HF_HUB_OFFLINE)


def with_retries(
    call: Callable[[], Result], *, what: str, access: HubAccess, attempts: int = ATTEMPTS
) -> Result:
    """Return the result of a call to the hub; retry transient failures of the network or the hub.

    A retry does not load complete files again. `what` names the model or data set in messages.
    Errors: HubError; unknown errors of the library as they are.
    """
    for attempt in range(attempts):
        try:
            return call()
        except Exception as error:  # explain_failure sorts them; unknown errors are raised again
            if not _is_transient(error) or attempt == attempts - 1:
                message = explain_failure(error, what=what, access=access, attempts=attempts)
                if message is None:
                    raise
                raise HubError(message) from error
        time.sleep(FIRST_PAUSE_SECONDS * 2**attempt)
    raise AssertionError("unreachable")


def explain_failure(error: Exception, *, what: str, access: HubAccess, attempts: int) -> str | None:
    """Return a message with a remedy; None for an error that is neither of the hub nor of the network."""
    errors = library().errors
    token_source = (
        "HF_TOKEN or token_file" if access.token_file is None else f"the token in {access.token_file}"
    )
    if isinstance(error, errors.GatedRepoError):
        return f"{what} is gated: accept its terms on its page, and check {token_source}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{what} has no revision {access.revision!r}; correct `revision`, or leave it out for main"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{what} is neither a local directory nor on the hub, or it is private: correct the id, or give "
            f"a token that may read it ({token_source})"
        )
    if isinstance(error, errors.HfHubHTTPError) and _status(error) in (401, 403):
        return f"the hub refused to give {what} (status {_status(error)}): check {token_source}"
    if isinstance(error, (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError)) and is_offline(
        access
    ):
        return (
            f"{what} is not complete in the cache ({access.cache_dir or 'of HF_HOME'}), and offline mode is "
            "on: load it once with a connection, or set offline: false and unset HF_HUB_OFFLINE"
        )
    if _is_untrusted(error):
        return (
            f"{what} was not loaded: the certificate of the hub, or of a proxy before it, "
            "is signed by no authority that this machine trusts; name a file of authorities in the "
            "variable SSL_CERT_FILE (in the chart: model.download.authority)"
        )
    if _is_transient(error):
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return (
            f"the hub did not answer for {what} after {attempts} attempts ({reason[0]}): check the network, "
            f"HF_ENDPOINT and proxies, and start again: complete files are kept{_directory_hint(what)}"
        )
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.FileMetadataError)):
        return f"{what} could not be loaded: {str(error).strip().splitlines()[0]}"
    return None


def _is_transient(error: BaseException | None) -> bool:
    """Return whether a failure is transient: an error of the network, or a busy hub."""
    import httpx2  # the HTTP client of huggingface_hub

    errors = library().errors
    if isinstance(error, errors.OfflineModeIsEnabled) or _is_untrusted(error):
        return False
    if isinstance(error, errors.HfHubHTTPError):
        return _status(error) in BUSY
    if isinstance(error, (httpx2.TransportError, ConnectionError, TimeoutError)):
        return True
    if isinstance(error, errors.LocalEntryNotFoundError):  # also raised for a failed request
        return _is_transient(error.__cause__ or error.__context__)
    return type(error) is OSError and "Consistency check failed" in str(error)


def _is_untrusted(error: BaseException | None) -> bool:
    """Return whether a failure or one of its causes is an untrusted certificate."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return error is not None


def _directory_hint(what: str) -> str:
    """Return a hint for a directory name that was taken for a hub id."""
    if not what.startswith("model.path"):
        return ""
    return f". If a directory was meant: {Path.cwd()} has none of that name"


def _status(error: Any) -> int | None:
    return getattr(error.response, "status_code", None)
