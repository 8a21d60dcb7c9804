"""Answers in the form of OpenAI's API."""

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any
from uuid import uuid4

import numpy as np

from slipstream.actor.chat import conversation, template
from slipstream.actor.program.requests import ChatRequest, TextRequest
from slipstream.actor.program.text import TextReply
from slipstream.records import Chunk, FinishReason, TopLogprobs, Turn

Spell = Callable[[Sequence[int]], str]
"""Returns the text of token ids, with special tokens."""


def models(model: str) -> dict[str, Any]:
    """Return the list of models: the policy."""
    return {
        "object": "list",
        "data": [{"id": model, "object": "model", "created": 0, "owned_by": "slipstream"}],
    }


def chat_completion(
    replies: Sequence[conversation.Reply], request: ChatRequest, spell: Spell
) -> dict[str, Any]:
    """Return the answer to a request of /chat/completions, with a choice for each reply."""
    return {
        **head("chatcmpl", "chat.completion", request.model),
        "choices": [
            {
                "index": index,
                "message": shown(reply.message),
                "finish_reason": reply.finish_reason,
                "logprobs": chat_logprobs(reply.turn, request, spell),
            }
            for index, reply in enumerate(replies)
        ],
        "usage": usage_of(replies),
    }


def text_completion(replies: Sequence[TextReply], request: TextRequest, spell: Spell) -> dict[str, Any]:
    """Return the answer to a request of /completions, with a choice for each reply. `token_ids` is not a
    field of OpenAI's API."""
    return {
        **head("cmpl", "text_completion", request.model),
        "choices": [
            {
                "index": index,
                "text": reply.text,
                "finish_reason": finish_of(reply.turn),
                "logprobs": text_logprobs(reply.turn, request, spell),
                "token_ids": list(reply.turn.token_ids),
            }
            for index, reply in enumerate(replies)
        ],
        "usage": usage_of(replies),
    }


def head(prefix: str, kind: str, model: str) -> dict[str, Any]:
    """Return the fields with which each answer begins."""
    return {"id": f"{prefix}-{uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def finish_of(turn: Turn) -> str:
    """Return why a turn of /completions has ended."""
    return "stop" if turn.finish_reason is FinishReason.STOP else "length"


def usage_of(replies: Sequence[conversation.Reply] | Sequence[TextReply]) -> dict[str, int]:
    """Return the numbers of tokens; the prompt counts once."""
    prompt = replies[0].prompt_tokens
    sampled = sum(len(reply.turn.token_ids) for reply in replies)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def shown(message: template.Message) -> dict[str, Any]:
    """Return a message with the fields that it has. `reasoning_content` is not a field of OpenAI's API."""
    fields: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning is not None:
        fields["reasoning_content"] = message.reasoning
    if message.tool_calls:
        fields["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return fields


def chat_logprobs(turn: Chunk, request: ChatRequest, spell: Spell) -> dict[str, Any] | None:
    """Return the logprobs of tokens, if the request wants them."""
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


def text_logprobs(
    turn: Chunk, request: TextRequest, spell: Spell, *, offset: int = 0
) -> dict[str, Any] | None:
    """Return the logprobs of tokens, if the request wants them. `offset`: characters of the turn before."""
    if request.logprobs is None:
        return None
    texts = [spell([token]) for token in turn.token_ids]
    rows = _top(turn.top_logprobs, len(texts), request.logprobs)
    return {
        "tokens": texts,
        "token_logprobs": list(turn.logprobs),
        "top_logprobs": [{spell([token]): logprob for token, logprob in row} for row in rows],
        "text_offset": list(accumulate(map(len, texts[:-1]), initial=offset)) if texts else [],
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
