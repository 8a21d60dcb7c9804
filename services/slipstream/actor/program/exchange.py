"""One request and its replies. A reply that its client did not get is kept for the same request, sent again.

Clients send a request again after a timeout or a broken connection, with the same body. A turn that had ended
by then is in the episode, so the second request gets that turn, and nothing is sampled after the same context
a second time. A turn that had not ended has left no trace (see Conversations), and is sampled anew.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from slipstream.actor.chat.turn_reader import Piece

Sampling = Callable[..., Awaitable[Any]]
"""Samples a turn, and returns a Reply or a TextReply; takes `on_piece`."""
OnPiece = Callable[[Piece], None]


class Undelivered:
    """Replies of an episode that no client has got, by the request."""

    def __init__(self) -> None:
        self.replies: dict[bytes, list[Any]] = {}


class Exchange:
    """One request with the replies to it so far."""

    def __init__(self, undelivered: Undelivered, request: bytes) -> None:
        """`request`: bytes that are equal for equal requests."""
        self._undelivered = undelivered.replies
        self._request = request
        self._replies: list[Any] = []

    async def reply(self, sampling: Sampling, on_piece: OnPiece | None) -> Any:
        """Return an undelivered reply to the same request; sample one if there is none."""
        earlier = self._undelivered.get(self._request)
        if earlier:
            reply = earlier.pop(0)
            if on_piece is not None:
                on_piece(Piece(text="", chunk=reply.turn))
        else:
            reply = await sampling(on_piece=on_piece)
        self._replies.append(reply)
        return reply

    def keep(self) -> None:
        """Keep the replies for the same request, sent again: the client has gone without them."""
        self._replies += self._undelivered.get(self._request, [])
        self._undelivered[self._request] = self._replies
