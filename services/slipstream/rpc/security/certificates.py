"""The files of rpc.tls: read as a whole, checked before use, and read again when they are renewed."""

import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slipstream.config import ConfigError, TlsConfig
from slipstream.rpc.security.handshake import own_certificate
from slipstream.rpc.security.identity import Stranger, role_of
from slipstream.rpc.security.reasons import OTHER, reason_of
from slipstream.telemetry.logs import Log

FILES = {"certificate": "CERTIFICATE", "key": "PRIVATE KEY", "authority": "CERTIFICATE"}
"""Fields of TlsConfig, and the PEM block that each file must hold."""
MADE_BY = "`slipstream certs` makes a set for development"
RETRY_SECONDS = 5.0
"""A renewal that could not be used may become usable without a change of its files: a mode, a clock."""
FileState = tuple[int, int, int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """One consistent set of files: the key is that of the certificate, and our authority signed it."""

    certificate: bytes
    key: bytes
    authority: bytes
    role: str
    expires: str
    """When the certificate ends, as OpenSSL writes it."""


class Certificates:
    """What the files hold now. A renewal that cannot be used leaves the last good set, and a warning.

    Files are often renewed one by one, or by the swap of a directory above them: whatever changed is taken
    only once it is consistent, and looked at again until it is. May be asked from any thread.
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
        """Where the files are."""
        return self._config

    def current(self) -> Material:
        """The newest set that can be used; three stats unless a file changed."""
        with self._lock:
            try:
                self._look()
            except ConfigError as error:
                self._keep(str(error))
            return self._material

    def _keep(self, fault: str) -> None:
        """Go on with what we have; each reason is said once."""
        self._retry_at = self._clock() + RETRY_SECONDS
        if self._log is not None and fault != self._fault:
            self._log.warning("renewed certificate cannot be used, keeping the old", error=fault)
        self._fault = fault

    def _look(self) -> None:
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
        found = own_certificate(config)
    except (ssl.SSLError, OSError) as error:
        said = getattr(error, "verify_message", "") or str(error)
        raise ConfigError(f"{_where(config)}: {_unusable(said)}") from error
    uris = [value for kind, value in found.get("subjectAltName", ()) if kind == "URI"]
    try:
        role = role_of(uris, trust_domain=config.trust_domain)
    except Stranger as error:
        raise ConfigError(f"{_where(config)}: {error}") from error
    return Material(**contents, role=role, expires=str(found.get("notAfter", "")))


def _read(path: Path, field: str, block: str) -> bytes:
    """The file's bytes. Errors: ConfigError."""
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


def _unusable(said: str) -> str:
    if "KEY_VALUES_MISMATCH" in said or "key values mismatch" in said:
        return "the key is not that of the certificate (rpc.tls.key)"
    if "PEM" in said or "ASN1" in said:
        return f"one of the files is not valid PEM ({said})"
    reason = reason_of(said)
    return reason.replace(OTHER, "the certificate").replace(
        "our authority: compare rpc.tls.authority on both sides", "rpc.tls.authority"
    )


def _where(config: TlsConfig) -> str:
    return f"rpc.tls.certificate: {config.certificate}"


def _state(config: TlsConfig) -> tuple[FileState, ...]:
    """What changes when a file is written, replaced, or reached through another directory."""
    return tuple(_file_state(getattr(config, field)) for field in FILES)


def _file_state(path: Path) -> FileState:
    try:
        stat = path.stat()
    except OSError:
        return None  # reading it says why
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size
