"""Samples the turns of a request for as long as its client stays, and answers at once or in parts.

Replies that their client does not get are kept: see Exchange.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from slipstream.actor.chat import conversation, template, turn_reader
from slipstream.actor.environment import EpisodeFull
from slipstream.actor.program import requests, sessions, text
from slipstream.actor.program.exchange import Exchange, OnPiece, Sampling
from slipstream.actor.program.refusal import Refusal
from slipstream.actor.program.streams import ChatStream, Head, TextStream, error_event, last_events
from slipstream.tokens import PromptTooLong, TemplateFailed


async def answered(
    request: Request, session: sessions.Session, exchange: Exchange, sampling: Sampling, choices: int
) -> list[Any]:
    """Return the replies of `choices` turns after one prompt. Errors: Refusal."""
    work = session.do(partial(_turns, session, exchange, sampling, [None] * choices))
    try:
        replies: list[Any] = await _while_connected(request, work)
    except BaseException:
        exchange.keep()
        raise
    return replies


class WholeAnswer(JSONResponse):
    """An answer that is not streamed. Its replies are kept if the client has left before it is written."""

    def __init__(self, content: Any, *, request: Request, exchange: Exchange) -> None:
        super().__init__(content)
        self._request = request
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Response. Nothing else runs in the event loop between the check and the write."""
        if await self._request.is_disconnected():
            self._exchange.keep()
        await super().__call__(scope, receive, send)


@dataclass(frozen=True, slots=True)
class Streams:
    """The choices of a streamed answer."""

    choices: Sequence[ChatStream | TextStream]
    request: requests.ChatRequest | requests.TextRequest
    head: Head
    failed: Callable[[Exception], Refusal]
    """Reports an error of the endpoint, and returns what the client gets."""


Pieces = asyncio.Queue[tuple[int, turn_reader.Piece] | None]
"""Pieces with the index of their choice; None once all turns have ended."""


async def streamed(
    request: Request, session: sessions.Session, exchange: Exchange, sampling: Sampling, streams: Streams
) -> Response:
    """Return a response that begins with the first tokens of a turn.

    Errors: Refusal for a turn that has failed before; a later failure is an event of the stream.
    """
    pieces: Pieces = asyncio.Queue()  # bounded by the tokens of the turns
    readers = [partial(_put, pieces, index) for index in range(len(streams.choices))]
    working = asyncio.ensure_future(session.do(partial(_turns, session, exchange, sampling, readers)))
    working.add_done_callback(lambda _: pieces.put_nowait(None))
    try:
        first = await _while_connected(request, pieces.get())
        if first is None:
            working.result()
    except BaseException:
        working.cancel()
        exchange.keep()
        raise
    events = _events(request, exchange, first, pieces, working, streams)
    return StreamingResponse(events, media_type="text/event-stream")


def _put(pieces: Pieces, index: int, piece: turn_reader.Piece) -> None:
    pieces.put_nowait((index, piece))


async def _events(
    request: Request,
    exchange: Exchange,
    numbered: tuple[int, turn_reader.Piece] | None,
    pieces: Pieces,
    working: "asyncio.Future[Any]",
    streams: Streams,
) -> AsyncIterator[bytes]:
    """Yield the events of turns; their sampling ends when they are not read any more."""
    is_complete = False
    try:
        while numbered is not None:
            index, piece = numbered
            for event in streams.choices[index].add(piece):
                yield event
            numbered = await _while_connected(request, pieces.get())
        replies = working.result()
        for stream, reply in zip(streams.choices, replies, strict=True):
            for event in stream.end(reply):
                yield event
        for event in last_events(replies, streams.request, streams.head):
            yield event
        is_complete = True
    except Refusal as refusal:
        yield error_event(refusal)
    except Exception as error:
        yield error_event(streams.failed(error))
    finally:
        working.cancel()
        if not is_complete:
            exchange.keep()


async def _turns(
    session: sessions.Session, exchange: Exchange, sampling: Sampling, readers: Sequence[OnPiece | None]
) -> list[Any]:
    """Return the replies of turns that are sampled at the same time. Errors: Refusal, and all turns end."""
    turns = [asyncio.ensure_future(_turn(session, exchange, sampling, on_piece)) for on_piece in readers]
    try:
        return await asyncio.gather(*turns)
    finally:
        for turn in turns:
            turn.cancel()


async def _turn(
    session: sessions.Session, exchange: Exchange, sampling: Sampling, on_piece: OnPiece | None
) -> Any:
    """Return the reply of a turn. Errors: Refusal."""
    try:
        reply: conversation.Reply | text.TextReply = await exchange.reply(sampling, on_piece)
        session.last_reply = reply.answer
        return reply
    except (EpisodeFull, PromptTooLong) as error:
        raise Refusal(
            400, f"the episode can take no further turn: {error}", code="context_length_exceeded"
        ) from error
    except text.TokenUnknown as error:
        raise Refusal(400, str(error), parameter="prompt") from error
    except (template.SeamBroken, TemplateFailed) as error:
        raise Refusal(400, str(error), parameter="messages") from error
    except Exception as error:
        if session.episode.sampling_error is None:
            raise
        session.lost.set()
        raise Refusal(503, "the turn could not be sampled; the episode ends") from error


async def _while_connected(request: Request, work: Awaitable[Any]) -> Any:
    """Return the result of the work, and cancel it when the client goes away. Errors: Refusal."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            raise Refusal(499, "the client went away")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
