"""Messages between a process and its children: a length, then JSON; never pickle (invariant 14)."""

import json
import socket
import struct
from typing import Any

LENGTH = struct.Struct(">I")
MAX_BYTES = 256 * 1024 * 1024


class BadFrame(ValueError):
    """The received bytes are no message."""


def to_frame(message: Any) -> bytes:
    """Serialize a message. Errors: ValueError or TypeError for a value that JSON does not have."""
    body = json.dumps(message, allow_nan=False).encode()
    return LENGTH.pack(len(body)) + body


def receive_frame(connection: socket.socket) -> dict[str, Any] | None:
    """Wait for the next message; return None at the end of the stream. Errors: BadFrame."""
    head = _receive(connection, LENGTH.size)
    body = _receive(connection, body_length(head)) if head is not None else None
    return None if body is None else from_body(body)


def body_length(head: bytes) -> int:
    """Return the length of a message from its header, in bytes. Errors: BadFrame above MAX_BYTES."""
    (length,) = LENGTH.unpack(head)
    if length > MAX_BYTES:
        raise BadFrame(f"a message of {length} bytes; the maximum is {MAX_BYTES}")
    return int(length)


def from_body(body: bytes) -> dict[str, Any]:
    """Parse the body of a message. Errors: BadFrame, JSONDecodeError."""
    message = json.loads(body)
    if not isinstance(message, dict):
        raise BadFrame(f"needs an object, got {type(message).__name__}")
    return message


def _receive(connection: socket.socket, length: int) -> bytes | None:
    parts: list[bytes] = []
    while length:
        part = connection.recv(min(length, 1 << 20))
        if not part:
            return None
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
