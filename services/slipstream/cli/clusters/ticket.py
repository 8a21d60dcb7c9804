"""The ticket of `slipstream probe`: address, network and nonce of the sender, as one word to copy."""

import secrets
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

EXAMPLE = "gloo://10.0.0.7:41235/0123…"
NONCE_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The sender's address, its network (`gloo`, or `nccl-` and a version), and a nonce for one receiver."""

    network: str
    host: str
    port: int
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE_BYTES), repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.network}://{host}:{self.port}/{self.nonce.hex()}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a ticket. Errors: ValueError for a text that is no ticket."""
        try:
            parts = urlsplit(text)
            nonce = bytes.fromhex(parts.path.removeprefix("/"))
            if not parts.scheme or not parts.hostname or not parts.port or len(nonce) != NONCE_BYTES:
                raise ValueError
        except ValueError as error:
            raise ValueError(
                f"{text!r} is not a ticket, such as {EXAMPLE}; copy all of the last word of the command that "
                "`slipstream probe send-weights` prints"
            ) from error
        return cls(network=parts.scheme, host=parts.hostname, port=parts.port, nonce=nonce)
