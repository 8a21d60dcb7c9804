"""Answers in the form of OpenAI's API."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any
from uuid import uuid4

import numpy as np

from slipstream.actor.chat.conversation import Reply
from slipstream.actor.chat.template import Message
from slipstream.actor.program.requests import ChatRequest, TextRequest
from slipstream.actor.program.text import TextReply
from slipstream.records import FinishReason, TopLogprobs, Turn

Spell = Callable[[Sequence[int]], str]
"""Returns the text of token ids, with special tokens."""
DONE = b"data: [DONE]\n\n"


def models(model: str) -> dict[str, Any]:
    """Return the list of models: the policy."""
    return {
        "object": "list",
        "data": [{"id": model, "object": "model", "created": 0, "owned_by": "slipstream"}],
    }


def chat_completion(reply: Reply, request: ChatRequest, spell: Spell) -> dict[str, Any]:
    """Return the answer to a request of /chat/completions."""
    return {
        **_head("chatcmpl", "chat.completion", request.model),
        "choices": [
            {
                "index": 0,
                "message": _message(reply.message),
                "finish_reason": reply.finish_reason,
                "logprobs": _chat_logprobs(reply.turn, request, spell),
            }
        ],
        "usage": _usage(reply.prompt_tokens, reply.turn),
    }


def chat_chunks(reply: Reply, request: ChatRequest, spell: Spell) -> Iterator[bytes]:
    """Yield the answer as a stream of server-sent events; the turn is complete before the first of them."""
    head = _head("chatcmpl", "chat.completion.chunk", request.model)
    fields = _message(reply.message)
    calls = fields.pop("tool_calls", [])
    deltas: list[dict[str, Any]] = [{"role": fields.pop("role"), "content": ""}, fields]
    deltas += [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(calls)]
    logprobs = {1: _chat_logprobs(reply.turn, request, spell)}
    for position, delta in enumerate(deltas):
        choice = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": logprobs.get(position)}
        yield _event({**head, "choices": [choice]})
    yield _event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish_reason}]})
    if request.include_usage:
        yield _event({**head, "choices": [], "usage": _usage(reply.prompt_tokens, reply.turn)})
    yield DONE


def text_completion(reply: TextReply, request: TextRequest, spell: Spell) -> dict[str, Any]:
    """Return the answer to a request of /completions. `token_ids` is not a field of OpenAI's API."""
    return {
        **_head("cmpl", "text_completion", request.model),
        "choices": [
            {
                "index": 0,
                "text": reply.text,
                "finish_reason": _finish(reply.turn),
                "logprobs": _text_logprobs(reply.turn, request, spell),
                "token_ids": list(reply.turn.token_ids),
            }
        ],
        "usage": _usage(reply.prompt_tokens, reply.turn),
    }


def text_chunks(reply: TextReply, request: TextRequest, spell: Spell) -> Iterator[bytes]:
    """Yield the answer as a stream of server-sent events; the turn is complete before the first of them."""
    answer = text_completion(reply, request, spell)
    usage = answer.pop("usage")
    yield _event(answer)
    if request.include_usage:
        yield _event({**answer, "choices": [], "usage": usage})
    yield DONE


def _head(prefix: str, kind: str, model: str) -> dict[str, Any]:
    return {"id": f"{prefix}-{uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _finish(turn: Turn) -> str:
    return "stop" if turn.finish_reason is FinishReason.STOP else "length"


def _usage(prompt_tokens: int, turn: Turn) -> dict[str, int]:
    sampled = len(turn.token_ids)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": prompt_tokens + sampled,
    }


def _message(message: Message) -> dict[str, Any]:
    """Return a message with the fields that it has. `reasoning_content` is not a field of OpenAI's API."""
    shown: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning is not None:
        shown["reasoning_content"] = message.reasoning
    if message.tool_calls:
        shown["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return shown


def _chat_logprobs(turn: Turn, request: ChatRequest, spell: Spell) -> dict[str, Any] | None:
    if not request.logprobs:
        return None
    rows = _top(turn.top_logprobs, len(turn.token_ids), request.top_logprobs or 0)
    return {
        "content": [
            {**_token(token, logprob, spell), "top_logprobs": [_token(*pair, spell) for pair in row]}
            for token, logprob, row in zip(turn.token_ids, turn.logprobs, rows, strict=True)
        ],
        "refusal": None,
    }


def _token(token: int, logprob: float, spell: Spell) -> dict[str, Any]:
    text = spell([token])
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _text_logprobs(turn: Turn, request: TextRequest, spell: Spell) -> dict[str, Any] | None:
    if request.logprobs is None:
        return None
    texts = [spell([token]) for token in turn.token_ids]
    rows = _top(turn.top_logprobs, len(texts), request.logprobs)
    return {
        "tokens": texts,
        "token_logprobs": list(turn.logprobs),
        "top_logprobs": [{spell([token]): logprob for token, logprob in row} for row in rows],
        "text_offset": list(accumulate(map(len, texts[:-1]), initial=0)) if texts else [],
    }


def _top(top: TopLogprobs | None, positions: int, wanted: int) -> list[list[tuple[int, float]]]:
    """Return the likeliest tokens at each position, as far as the run records them."""
    if top is None or not wanted:
        return [[] for _ in range(positions)]
    ids = np.frombuffer(top.ids, "<u4").reshape(-1, top.top_k)[:, :wanted]
    logprobs = np.frombuffer(top.logprobs, "<f4").reshape(-1, top.top_k)[:, :wanted]
    return [
        [(token, logprob) for token, logprob in zip(*row, strict=True) if np.isfinite(logprob)]
        for row in zip(ids.tolist(), logprobs.tolist(), strict=True)
    ]
