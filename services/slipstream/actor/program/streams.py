"""Streamed answers: server-sent events in the form of OpenAI's API, while the turn is sampled.

Invariant: the texts of all events together are the text of the answer that is not streamed, and so are the
logprobs. Calls of tools and thoughts come whole.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from slipstream.actor.chat import conversation, messages, turn_reader
from slipstream.actor.program import requests, responses
from slipstream.actor.program.refusal import Refusal
from slipstream.actor.program.text import TextReply
from slipstream.records import Chunk, joined

Head = Mapping[str, Any]
DONE = b"data: [DONE]\n\n"


class ChatStream:
    """The events of one choice of an answer to a request of /chat/completions."""

    def __init__(
        self,
        request: requests.ChatRequest,
        spell: responses.Spell,
        settled: Callable[[str], messages.Message],
        *,
        index: int,
        head: Head,
    ) -> None:
        """`settled`: see ChatTemplate. `head`: fields of all events of the answer."""
        self._request = request
        self._spell = spell
        self._settled = settled
        self._index = index
        self._head = head
        self._began = self._has_thoughts = False
        self._sent = 0
        """Characters of the content that were sent."""
        self._chunks: list[Chunk] = []
        """Tokens since the last event."""

    def add(self, piece: turn_reader.Piece) -> Iterator[bytes]:
        """Yield the events of a piece."""
        self._chunks.append(piece.chunk)
        yield from self._begin()
        if delta := self._delta(self._settled(piece.text)):
            yield self._event(delta, logprobs=self._logprobs())

    def end(self, reply: conversation.Reply) -> Iterator[bytes]:
        """Yield the last events."""
        yield from self._begin()
        calls = responses.shown(reply.message).get("tool_calls", [])
        if delta := self._delta(reply.message):
            yield self._event(delta, logprobs=self._logprobs())
        for index, call in enumerate(calls):
            yield self._event({"tool_calls": [{"index": index, **call}]}, logprobs=self._logprobs())
        yield self._event({}, finish_reason=reply.finish_reason, logprobs=self._logprobs())

    def _begin(self) -> Iterator[bytes]:
        if not self._began:
            self._began = True
            yield self._event({"role": "assistant", "content": ""})

    def _delta(self, message: messages.Message) -> dict[str, Any]:
        """Return what of a message was not sent."""
        delta: dict[str, Any] = {}
        if message.reasoning is not None and not self._has_thoughts:
            self._has_thoughts = True
            delta["reasoning_content"] = message.reasoning
        if rest := (message.content or "")[self._sent :]:
            self._sent += len(rest)
            delta["content"] = rest
        return delta

    def _logprobs(self) -> dict[str, Any] | None:
        """Return the logprobs of the tokens since the last event."""
        chunks, self._chunks = self._chunks, []
        return responses.chat_logprobs(joined(chunks), self._request, self._spell) if chunks else None

    def _event(
        self, delta: dict[str, Any], *, finish_reason: str | None = None, logprobs: Any = None
    ) -> bytes:
        choice = {"index": self._index, "delta": delta, "finish_reason": finish_reason, "logprobs": logprobs}
        return event({**self._head, "choices": [choice]})


class TextStream:
    """The events of one choice of an answer to a request of /completions."""

    def __init__(
        self, request: requests.TextRequest, spell: responses.Spell, *, index: int, head: Head
    ) -> None:
        self._request = request
        self._spell = spell
        self._index = index
        self._head = head
        self._sent = 0
        self._spelled = 0
        """Characters of all tokens that were sent."""
        self._chunks: list[Chunk] = []

    def add(self, piece: turn_reader.Piece) -> Iterator[bytes]:
        """Yield the event of a piece."""
        self._chunks.append(piece.chunk)
        if len(piece.text) > self._sent:
            yield self._event(piece.text)

    def end(self, reply: TextReply) -> Iterator[bytes]:
        """Yield the last events."""
        yield self._event(reply.text, finish_reason=responses.finish_of(reply.turn))

    def _event(self, text: str, *, finish_reason: str | None = None) -> bytes:
        tokens, self._chunks = joined(self._chunks), []
        logprobs = responses.text_logprobs(tokens, self._request, self._spell, offset=self._spelled)
        if logprobs is not None:
            self._spelled += sum(map(len, logprobs["tokens"]))
        choice = {
            "index": self._index,
            "text": text[self._sent :],
            "finish_reason": finish_reason,
            "logprobs": logprobs,
            "token_ids": list(tokens.token_ids),
        }
        self._sent = len(text)
        return event({**self._head, "choices": [choice]})


def last_events(
    replies: Sequence[conversation.Reply] | Sequence[TextReply],
    request: requests.ChatRequest | requests.TextRequest,
    head: Head,
) -> Iterator[bytes]:
    """Yield what follows the last events of all choices."""
    if request.include_usage:
        yield event({**head, "choices": [], "usage": responses.usage_of(replies)})
    yield DONE


def event(value: dict[str, Any]) -> bytes:
    """Return a server-sent event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def error_event(refusal: Refusal) -> bytes:
    """Return the event that ends a stream whose turn has failed."""
    return event(refusal.body())
