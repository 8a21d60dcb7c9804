"""The conversations of one episode: each is a segment, and each request continues one or begins one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from slipstream.actor.chat.messages import Message, continues
from slipstream.actor.chat.template import ChatTemplate, Tool
from slipstream.actor.chat.turn_reader import Piece, TurnReader
from slipstream.actor.environment import Episode
from slipstream.actor.transcript import Transcript
from slipstream.records import FinishReason, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the policy answered."""

    message: Message
    finish_reason: Literal["stop", "length", "tool_calls"]
    """`length`: the turn was cut by a bound."""
    prompt_tokens: int
    """Number of tokens before the turn."""
    turn: Turn

    @property
    def answer(self) -> str:
        """The text of the message."""
        return self.message.content or ""


@dataclass(slots=True)
class _Conversation:
    """Messages up to a sampled turn, and the segment that holds their tokens."""

    segment: Transcript
    template: ChatTemplate
    """The template with the time at which the conversation began."""
    tools: list[Tool]
    messages: list[Message] = field(default_factory=list)
    """The last one is the turn that was sampled last."""
    sampled: tuple[int, ...] = ()
    """Tokens of the turn that was sampled last."""
    closed: bool = False
    """Whether it is being continued, or could not be."""


class Conversations:
    """Samples replies to messages.

    Invariant: a request that continues a conversation reuses its tokens; each sampled turn is continued at
    most once.
    """

    def __init__(
        self, episode: Episode, template: ChatTemplate, *, clock: Callable[[], datetime] = datetime.now
    ) -> None:
        self._episode = episode
        self._template = template
        self._clock = clock
        self._conversations: list[_Conversation] = []

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        max_tokens: int | None = None,
        *,
        stop: Sequence[str] = (),
        on_piece: Callable[[Piece], None] | None = None,
    ) -> Reply:
        """Sample the assistant's reply to messages.

        The longest conversation that the messages continue, with the same tools, gets the new messages as an
        observation. Without one, or if its last turn is being continued already, a new segment begins.
        `max_tokens`: most tokens of the reply. `stop`: strings that end it; the message ends before the
        first one, and the tokens up to its end stay in the conversation. `on_piece` is called while the reply
        is sampled. Errors: EpisodeFull, SeamBroken, TemplateFailed, those of `Episode.sample`.
        """
        reader = self._template.reader(stop, on_piece) if stop or on_piece else None
        conversation = self._continued(messages, tools)
        if conversation is None:
            conversation = self._begin(messages, tools)
        else:
            self._continue(conversation, messages)
        return await self._sample(conversation, max_tokens, reader)

    def settled(self, text: str) -> Message:
        """See ChatTemplate."""
        return self._template.settled(text)

    def _continued(self, messages: Sequence[Message], tools: Sequence[Tool]) -> _Conversation | None:
        candidates = [
            each
            for each in self._conversations
            if not each.closed and each.tools == list(tools) and continues(messages, each.messages)
        ]
        return max(candidates, key=lambda each: len(each.messages), default=None)

    def _begin(self, messages: Sequence[Message], tools: Sequence[Tool]) -> _Conversation:
        template = self._template.at(self._clock())
        segment = self._episode.begin_segment(template.render(messages, tools))
        conversation = _Conversation(segment, template, list(tools), list(messages), closed=True)
        self._conversations.append(conversation)
        return conversation

    def _continue(self, conversation: _Conversation, messages: Sequence[Message]) -> None:
        """Append the new messages. The recorded ones stay as they are, with thoughts that clients drop."""
        conversation.closed = True
        new = list(messages[len(conversation.messages) :])
        token_ids = conversation.template.continuation(
            conversation.messages, new, conversation.sampled, conversation.tools
        )
        self._episode.observe_in(conversation.segment, token_ids)
        conversation.messages += new

    async def _sample(
        self, conversation: _Conversation, max_tokens: int | None, reader: TurnReader | None
    ) -> Reply:
        segment = conversation.segment
        prompt_tokens = len(segment.prompt_token_ids or ()) + len(segment.token_ids)
        turn = await self._episode.sample_in(segment, max_tokens, reader)
        calls_before = sum(len(each.tool_calls) for each in conversation.messages)
        if reader is None:
            message = self._template.parse(turn.token_ids, calls_before=calls_before)
        else:
            message = self._template.read(reader.text, calls_before=calls_before)
        conversation.messages.append(message)
        conversation.sampled = turn.token_ids
        conversation.closed = False
        return Reply(
            message=message,
            finish_reason=_finish_reason(turn, message),
            prompt_tokens=prompt_tokens,
            turn=turn,
        )


def _finish_reason(turn: Turn, message: Message) -> Literal["stop", "length", "tool_calls"]:
    if turn.finish_reason is FinishReason.LENGTH:
        return "length"
    return "tool_calls" if message.tool_calls else "stop"
