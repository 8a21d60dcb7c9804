"""Reads a turn while it is sampled: its text for a client, and where a stop string ends it.

    tokens ── text ── settled characters ── stop string? ── yes ──▶ the turn ends with this token
                                                   └ no ──▶ visible text: no part of a stop string

The token that completes a stop string is the last one of the turn. It is trained, as the tokens before it
are: the policy sampled it. The text of the turn ends before the stop string.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from slipstream.actor.chat.token_text import Decode, TokenText, begun_at_the_end
from slipstream.records import Chunk, chunk_until


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What became known of a turn with some of its tokens."""

    text: str
    """All text of the turn so far that no later token changes."""
    chunk: Chunk
    """The tokens since the last piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopFound:
    """A stop string in the text of a turn."""

    start: int
    """Position of its first character."""
    end: int


class TurnReader:
    """A Watch that ends a turn at the first stop string."""

    def __init__(
        self,
        decode: Decode,
        *,
        ends: Collection[int] = (),
        stop: Sequence[str] = (),
        on_piece: Callable[[Piece], None] | None = None,
    ) -> None:
        """`ends`: tokens that are no text if they are the last ones of the turn. `on_piece` is called for
        each chunk."""
        self.stopped: StopFound | None = None
        """The stop string that ended the turn."""
        self._text = TokenText(decode)
        self._ends = ends
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._on_piece = on_piece
        self._last: int | None = None
        """A token of `ends` that may be the last one."""

    def __call__(self, chunk: Chunk) -> int | None:
        """See Watch."""
        kept = next(
            (number for number, token in enumerate(chunk.token_ids, 1) if self._completes_stop(token)), None
        )
        if self._on_piece is not None:
            part = chunk if kept is None else chunk_until(chunk, kept)
            self._on_piece(Piece(text=self.visible, chunk=part))
        return kept

    @property
    def visible(self) -> str:
        """The text so far, without an end that may be the beginning of a stop string."""
        text = self._text.settled
        if self.stopped is not None:
            return text[: self.stopped.start]
        return text[: len(text) - begun_at_the_end(text, self._stop)]

    @property
    def text(self) -> str:
        """The text of the turn, once it has ended: it ends before the stop string."""
        return self._text.whole() if self.stopped is None else self._text.settled[: self.stopped.start]

    @property
    def behind(self) -> tuple[str, str]:
        """The stop string that ended the turn, and what its last token spells behind it."""
        assert self.stopped is not None
        text = self._text.whole()
        return text[self.stopped.start : self.stopped.end], text[self.stopped.end :]

    def _completes_stop(self, token: int) -> bool:
        """Add a token; return whether it completes a stop string."""
        before = len(self._text.settled)
        if self._last is not None:
            self._text.add(self._last)
        self._last = token if token in self._ends else None
        if self._last is None:
            self._text.add(token)
        self.stopped = _first_stop(self._text.settled, self._stop, since=before - self._longest + 1)
        return self.stopped is not None


def _first_stop(text: str, stop: Sequence[str], *, since: int) -> StopFound | None:
    """Return the stop string that a text completes first; of several that end together, the longest.

    `since`: position before which none begins.
    """
    completed = [
        StopFound(start=start, end=start + len(each))
        for each in stop
        if (start := text.find(each, max(since, 0))) >= 0
    ]
    return min(completed, key=lambda each: (each.end, each.start), default=None)
