"""The address of Redis, the user and password for it, and the certificate authority to trust."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from redis import exceptions
from redis.credentials import CredentialProvider

from slipstream.config import ReplayConfig, addresses

DEFAULT_USER = "default"


class PasswordUnreadable(exceptions.ConnectionError):
    """The password file is missing, empty, or not readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to connect to Redis. The fields are the keys `replay.redis_*` of the configuration."""

    url: str
    username: str | None = None
    password_file: Path | None = None
    authority: Path | None = None

    @classmethod
    def of(cls, url: str, config: ReplayConfig) -> Self:
        """Return the access to the Redis at `url` with the settings of the configuration."""
        return cls(
            url=url,
            username=config.redis_username,
            password_file=config.redis_password_file,
            authority=config.redis_authority,
        )

    @property
    def shown_url(self) -> str:
        """The address without credentials, for logs and errors."""
        return without_credentials(self.url)

    @property
    def plaintext(self) -> bool:
        """Whether the traffic to Redis, including the password, leaves this machine unencrypted."""
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
        return parts.scheme == "redis" and not addresses.is_loopback(f"{host or 'localhost'}:0")

    @property
    def shown_user(self) -> str:
        """The name of the user, for logs and errors."""
        return self.username or DEFAULT_USER

    def options(self) -> dict[str, Any]:
        """Return the options of the client's connections besides the address."""
        options: dict[str, Any] = {}
        if self.password_file is not None:
            options["credential_provider"] = PasswordFile(self.shown_user, self.password_file)
        if self.authority is not None:
            options["ssl_ca_certs"] = str(self.authority)
        return options


class PasswordFile(CredentialProvider):
    """Reads the password at each new connection, so that a changed password needs no restart."""

    def __init__(self, username: str, path: Path) -> None:
        self._username = username
        self._path = path

    def get_credentials(self) -> tuple[str, str]:
        """Return user and password, without newlines at the end of the file. Errors: PasswordUnreadable."""
        try:
            password = self._path.read_text(encoding="utf-8").rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise PasswordUnreadable(f"cannot read {self._path}: {reason}") from None
        if not password:
            raise PasswordUnreadable(f"{self._path} is empty")
        return self._username, password

    async def get_credentials_async(self) -> tuple[str, str]:
        """Return the same as get_credentials, without blocking the event loop."""
        return await asyncio.to_thread(self.get_credentials)


def without_credentials(url: str) -> str:
    """Return the address without user, password and query, for logs and errors."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
