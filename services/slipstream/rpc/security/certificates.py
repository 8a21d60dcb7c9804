"""The files of rpc.tls: checked before use, and read again when they are renewed."""

import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slipstream.config import ConfigError, TlsConfig
from slipstream.rpc.security import failures, handshake, identity
from slipstream.telemetry.logs import Log

FILES = {"certificate": "CERTIFICATE", "key": "PRIVATE KEY", "authority": "CERTIFICATE"}
"""Fields of TlsConfig, and the PEM block that each file must hold."""
MADE_BY = "`slipstream certs` makes a set for development"
RETRY_SECONDS = 5.0
"""Time to the next look at files that could not be used: a clock or a file mode may have changed."""
FileState = tuple[int, int, int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """One consistent set of files: the key fits the certificate, which our authority has signed."""

    certificate: bytes
    key: bytes
    authority: bytes
    role: str
    expires: str
    """When the certificate ends, as OpenSSL writes it."""


class Certificates:
    """The current files. After a renewal that cannot be used it keeps the last good set, and logs a warning.

    Files are often renewed one by one, or by the swap of a directory above them. So changed files are used
    only once they are consistent, and read again until they are. Thread-safe.
    """

    def __init__(
        self, config: TlsConfig, log: Log | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Errors: ConfigError naming the key and the file that cannot be used."""
        self._config = config
        self._log = log
        self._clock = clock
        self._fault = ""
        self._retry_at = 0.0
        self._lock = threading.Lock()
        self._seen = _state(config)
        self._material = read_material(config)

    @property
    def config(self) -> TlsConfig:
        """The section of the configuration with the paths."""
        return self._config

    def current(self) -> Material:
        """Return the newest set that can be used. Costs three calls of stat unless a file changed."""
        with self._lock:
            try:
                self._reload()
            except ConfigError as error:
                self._keep_current(str(error))
            return self._material

    def _keep_current(self, fault: str) -> None:
        """Keep the current set, and log each reason once."""
        self._retry_at = self._clock() + RETRY_SECONDS
        if self._log is not None and fault != self._fault:
            self._log.warning("renewed certificate cannot be used, keeping the old", error=fault)
        self._fault = fault

    def _reload(self) -> None:
        state = _state(self._config)
        if state == self._seen and not (self._fault and self._clock() >= self._retry_at):
            return
        self._seen = state
        material = read_material(self._config)
        if _state(self._config) != state:
            self._seen = ()  # it changed while it was read: the next call reads it again
            return
        self._material, self._fault = material, ""
        if self._log is not None:
            self._log.info("certificate renewed", role=material.role, expires=material.expires)


def read_material(config: TlsConfig) -> Material:
    """Read and check the files. Errors: ConfigError naming the key and the file."""
    contents = {field: _read(getattr(config, field), field, block) for field, block in FILES.items()}
    try:
        certificate = handshake.own_certificate(config)
    except (ssl.SSLError, OSError) as error:
        message = getattr(error, "verify_message", "") or str(error)
        raise ConfigError(f"{_where(config)}: {_unusable(message)}") from error
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    try:
        role = identity.role_of(uris, trust_domain=config.trust_domain)
    except identity.InvalidIdentity as error:
        raise ConfigError(f"{_where(config)}: {error}") from error
    return Material(**contents, role=role, expires=str(certificate.get("notAfter", "")))


def _read(path: Path, field: str, block: str) -> bytes:
    """Return the bytes of a file. Errors: ConfigError."""
    key = f"rpc.tls.{field}"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror}; {MADE_BY}") from error
    if f"{block}-----".encode() not in content:
        raise ConfigError(f"{key}: {path} is not PEM with a {block.lower()}; {MADE_BY}")
    if field == "key" and b"ENCRYPTED" in content:
        raise ConfigError(f"{key}: {path} is encrypted; write it without a passphrase, for the pod only")
    return content


def _unusable(openssl_message: str) -> str:
    if "KEY_VALUES_MISMATCH" in openssl_message or "key values mismatch" in openssl_message:
        return "the key is not that of the certificate (rpc.tls.key)"
    if "PEM" in openssl_message or "ASN1" in openssl_message:
        return f"one of the files is not valid PEM ({openssl_message})"
    return failures.failure_of(openssl_message).of_file()


def _where(config: TlsConfig) -> str:
    return f"rpc.tls.certificate: {config.certificate}"


def _state(config: TlsConfig) -> tuple[FileState, ...]:
    """Return values that change when a file is written, replaced, or reached through another directory."""
    return tuple(_file_state(getattr(config, field)) for field in FILES)


def _file_state(path: Path) -> FileState:
    try:
        stat = path.stat()
    except OSError:
        return None  # the attempt to read it raises an error with the reason
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size
