"""Messages between the verifier and its children: a length, then JSON; never code (invariant 14)."""

import json
import socket
import struct
from typing import Any

from slipstream.types import FinishReason, Outcome, StepReward
from slipstream.verifier.reward import Answer, Verdict

LENGTH = struct.Struct(">I")
MAX_BYTES = 256 * 1024 * 1024


class BadFrame(ValueError):
    """What came is not a message."""


def to_frame(message: Any) -> bytes:
    """A message as bytes. Errors: ValueError or TypeError for what JSON cannot say."""
    body = json.dumps(message, allow_nan=False).encode()
    return LENGTH.pack(len(body)) + body


def receive_frame(connection: socket.socket) -> dict[str, Any] | None:
    """The next message, or None at the end of the stream; waits for it. Errors: BadFrame."""
    head = _receive(connection, LENGTH.size)
    body = _receive(connection, body_length(head)) if head is not None else None
    return None if body is None else from_body(body)


def answer_to_json(answer: Answer) -> list[Any]:
    """Answer → JSON."""
    return [answer.text, answer.tokens, answer.finish_reason.value]


def answer_from_json(value: list[Any]) -> Answer:
    """JSON → Answer."""
    text, tokens, reason = value
    return Answer(text=text, tokens=tokens, finish_reason=FinishReason(reason))


def verdict_to_json(verdict: Verdict) -> list[Any]:
    """Verdict → JSON."""
    steps = [[step.value, step.text_end] for step in verdict.steps]
    return [verdict.value, verdict.outcome.value, verdict.detail, steps]


def verdict_from_json(value: list[Any]) -> Verdict:
    """JSON → Verdict."""
    number, outcome, detail, pairs = value
    steps = tuple(StepReward(value=score, text_end=end) for score, end in pairs)
    return Verdict(value=number, outcome=Outcome(outcome), detail=detail, steps=steps)


def body_length(head: bytes) -> int:
    """How long the message behind its first bytes is. Errors: BadFrame when it is longer than one may be."""
    (length,) = LENGTH.unpack(head)
    if length > MAX_BYTES:
        raise BadFrame(f"a message of {length} bytes; at most {MAX_BYTES} are read")
    return int(length)


def from_body(body: bytes) -> dict[str, Any]:
    """Bytes as a message. Errors: BadFrame, JSONDecodeError."""
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
