"""Requests of /completions: a prompt of text or token ids that continues a conversation, or begins one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.actor import environment, transcript
from slipstream.actor.chat.turn_reader import Piece, TurnReader
from slipstream.records import FinishReason, Prompt, Turn


class Tokenizer(Protocol):
    """What the endpoint needs of the policy's tokenizer."""

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the token ids of a prompt. Errors: PromptTooLong."""

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text, without special tokens at its ends."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""

    def decode_with_special(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, with special tokens."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""


class TokenUnknown(ValueError):
    """A prompt has a token id that the vocabulary of the policy lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReply:
    """A turn, and what a client of /completions reads of it."""

    text: str
    turn: Turn
    prompt_tokens: int

    @property
    def answer(self) -> str:
        """The text of the turn."""
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A conversation that a request may continue."""

    segment: transcript.Transcript
    token_ids: tuple[int, ...]
    """Prompt, turns and observations."""
    text: str | None
    """The prompts and answers of its client; None if the client sends token ids."""
    request: str | tuple[int, ...]
    """Prompt of the last request. The same prompt again begins a conversation, even after an empty answer."""
    ends: tuple[str, ...] = ("",)
    """What a prompt that continues the conversation has behind `text`, the likeliest first: the spelling of
    the end-of-sequence token, if the last turn has sampled it; the stop string that ended it, with or without
    what its last token spells behind it, or nothing."""


class TextConversations:
    """All conversations of one episode that requests of /completions hold.

    Invariant: a request whose prompt begins with a conversation and its answers continues it, without
    tokenising what was sampled again. All others begin a conversation, the second of two requests that
    continue the same turn included. A request without a turn leaves no trace: the same request, sent again,
    finds the conversation as the first one did.
    """

    def __init__(self, episode: environment.Episode, tokens: Tokenizer) -> None:
        self._episode = episode
        self._tokens = tokens
        self._known: list[_Known] = []

    async def complete(
        self,
        prompt: str | tuple[int, ...],
        max_tokens: int | None = None,
        *,
        stop: Sequence[str] = (),
        on_piece: Callable[[Piece], None] | None = None,
    ) -> TextReply:
        """Sample a turn after a prompt.

        `stop`, `on_piece`: see Conversations. Errors: EpisodeFull, PromptTooLong, TokenUnknown, those of
        sampling.
        """
        reader = TurnReader(self._tokens.decode, stop=stop, on_piece=on_piece) if stop or on_piece else None
        if not isinstance(prompt, str):
            self._check(prompt)
        earlier, rest = self._continued(prompt)
        if earlier is None:
            token_ids = self._encoded(prompt)
            segment, turn = await self._begin(token_ids, max_tokens, reader)
        else:
            token_ids, segment = earlier.token_ids + rest, earlier.segment
            turn = await self._continue(earlier, rest, max_tokens, reader)
        text = self._tokens.decode(turn.token_ids) if reader is None else reader.text
        if segment.token_ids:
            self._known.append(
                _Known(
                    segment=segment,
                    token_ids=token_ids + turn.token_ids,
                    text=prompt + text if isinstance(prompt, str) else None,
                    request=prompt,
                    ends=self._ends(turn, reader),
                )
            )
        return TextReply(text=text, turn=turn, prompt_tokens=len(token_ids))

    async def _begin(
        self, token_ids: tuple[int, ...], max_tokens: int | None, reader: TurnReader | None
    ) -> tuple[transcript.Transcript, Turn]:
        segment = self._episode.begin_segment(token_ids)
        try:
            return segment, await self._episode.sample_in(segment, max_tokens, reader)
        finally:
            if not segment.token_ids:
                self._episode.discard_segment(segment)

    async def _continue(
        self, earlier: _Known, rest: tuple[int, ...], max_tokens: int | None, reader: TurnReader | None
    ) -> Turn:
        """Return the next turn. No other request continues the conversation at the same time."""
        self._known = [each for each in self._known if each is not earlier]
        try:
            return await self._episode.sample_in(earlier.segment, max_tokens, reader, observation=rest)
        except BaseException:
            self._known.append(earlier)
            raise

    def _check(self, prompt: Sequence[int]) -> None:
        """Errors: TokenUnknown."""
        size = self._tokens.vocabulary
        position = next((position for position, token in enumerate(prompt) if token >= size), None)
        if position is not None:
            raise TokenUnknown(
                f"prompt: token {prompt[position]} at position {position} is not in the vocabulary, which "
                f"has {size} tokens: 0 to {size - 1}"
            )

    def _ends(self, turn: Turn, reader: TurnReader | None) -> tuple[str, ...]:
        if reader is not None and reader.stopped is not None:
            stop, behind = reader.behind
            return (stop + behind, stop, "")
        ended = turn.finish_reason is FinishReason.STOP
        return (self._tokens.decode_with_special(turn.token_ids[-1:]) if ended else "",)

    def _continued(self, prompt: str | tuple[int, ...]) -> tuple[_Known | None, tuple[int, ...]]:
        """Return the longest conversation that the prompt continues, and the tokens of the prompt after it.

        None and no tokens if it continues none.
        """
        rests = [(held, rest) for held in self._known if (rest := self._rest(held, prompt)) is not None]
        return max(rests, key=lambda pair: len(pair[0].token_ids), default=(None, ()))

    def _rest(self, held: _Known, prompt: str | tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the tokens of a prompt after those of a conversation; None if it does not continue it."""
        if prompt == held.request:
            return None
        if not isinstance(prompt, str):
            size = len(held.token_ids)
            return prompt[size:] if prompt[:size] == held.token_ids else None
        for end in held.ends if held.text is not None else ():
            if prompt.startswith(f"{held.text}{end}"):
                return self._tokens.encode_text(prompt.removeprefix(f"{held.text}{end}"))
        return None

    def _encoded(self, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
        """Return the token ids of a prompt that begins a conversation."""
        if not isinstance(prompt, str):
            return prompt
        return self._tokens.encode(Prompt(prompt_id="of the request", task="", answer="", text=prompt))
