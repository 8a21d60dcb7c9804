"""Requests of /completions: a prompt of text or token ids that continues a conversation, or begins one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.actor.chat.turn_reader import Piece, TurnReader
from slipstream.actor.environment import Episode
from slipstream.actor.transcript import Transcript
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

    segment: Transcript
    token_ids: tuple[int, ...]
    """Prompt, turns and observations."""
    text: str | None
    """The prompts and answers of its client; None if the client sends token ids."""
    ends: tuple[str, ...] = ("",)
    """What a prompt that continues the conversation has behind `text`, the likeliest first: the spelling of
    the end-of-sequence token, if the last turn has sampled it; the stop string that ended it, with or without
    what its last token spells behind it, or nothing."""


class TextConversations:
    """All conversations of one episode that requests of /completions hold.

    Invariant: a request whose prompt begins with a conversation and its answers continues it, without
    tokenising what was sampled again. All others begin a conversation, the second of two requests that
    continue the same turn included.
    """

    def __init__(self, episode: Episode, tokens: Tokenizer) -> None:
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

        `stop`, `on_piece`: see Conversations. Errors: EpisodeFull, PromptTooLong, those of sampling.
        """
        reader = TurnReader(self._tokens.decode, stop=stop, on_piece=on_piece) if stop or on_piece else None
        held = self._continued(prompt) or self._begun(prompt)
        try:
            turn = await self._episode.sample_in(held.segment, max_tokens, reader)
        except BaseException:  # the client may go away, and its request come again
            self._known.append(held)
            raise
        text = self._tokens.decode(turn.token_ids) if reader is None else reader.text
        self._known.append(
            _Known(
                segment=held.segment,
                token_ids=held.token_ids + turn.token_ids,
                text=None if held.text is None else held.text + text,
                ends=self._ends(turn, reader),
            )
        )
        return TextReply(text=text, turn=turn, prompt_tokens=len(held.token_ids))

    def _ends(self, turn: Turn, reader: TurnReader | None) -> tuple[str, ...]:
        if reader is not None and reader.stopped is not None:
            stop, behind = reader.behind
            return (stop + behind, stop, "")
        ended = turn.finish_reason is FinishReason.STOP
        return (self._tokens.decode_with_special(turn.token_ids[-1:]) if ended else "",)

    def _continued(self, prompt: str | tuple[int, ...]) -> _Known | None:
        """Return the longest conversation that the prompt continues, with the rest of the prompt appended.

        It is no longer known then, so that no other request continues it at the same time.
        """
        rests = [(held, rest) for held in self._known if (rest := self._rest(held, prompt)) is not None]
        if not rests:
            return None
        held, rest = max(rests, key=lambda pair: len(pair[0].token_ids))
        self._episode.observe_in(held.segment, rest)
        self._known.remove(held)
        text = prompt if isinstance(prompt, str) else None
        return _Known(segment=held.segment, token_ids=held.token_ids + rest, text=text)

    def _rest(self, held: _Known, prompt: str | tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the tokens of a prompt after those of a conversation; None if it does not continue it."""
        if not isinstance(prompt, str):
            size = len(held.token_ids)
            return prompt[size:] if prompt[:size] == held.token_ids else None
        for end in held.ends if held.text is not None else ():
            if prompt.startswith(f"{held.text}{end}"):
                return self._tokens.encode_text(prompt.removeprefix(f"{held.text}{end}"))
        return None

    def _begun(self, prompt: str | tuple[int, ...]) -> _Known:
        text = prompt if isinstance(prompt, str) else None
        if isinstance(prompt, str):
            prompt = self._tokens.encode(Prompt(prompt_id="of the request", task="", answer="", text=prompt))
        return _Known(segment=self._episode.begin_segment(prompt), token_ids=prompt, text=text)
