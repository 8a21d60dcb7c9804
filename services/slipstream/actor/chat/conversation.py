"""The conversations of one episode: each is a segment, and each request continues one or begins one.

request ── continues a turn ── observation + turn ── both are appended to the segment
   │                                 └ no turn (error, client gone) ── the segment is as before the request
   └ else ── a new segment ── turn ── the segment stays
                               └ no turn ── the segment is forgotten

So the same request, sent again, finds the conversation as the first one did: the segment has the sampled
turns with their ids, logprobs and versions, and only the new messages are tokenised again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from slipstream.actor import environment, transcript
from slipstream.actor.chat.messages import Message, continues
from slipstream.actor.chat.template import ChatTemplate, Tool
from slipstream.actor.chat.turn_reader import Piece, TurnReader
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
    """A conversation whose last message is a sampled turn."""

    segment: transcript.Transcript
    """The tokens of the messages."""
    template: ChatTemplate
    """The template with the time at which the conversation began."""
    tools: list[Tool]
    messages: list[Message] = field(default_factory=list)
    """The last one is the turn that was sampled last."""
    sampled: tuple[int, ...] = ()
    """Tokens of the turn that was sampled last."""
    closed: bool = False
    """Whether a request continues it now, or the template could not continue it."""


class Conversations:
    """Samples replies to messages.

    Invariant: a request that continues a conversation reuses its tokens; each sampled turn is continued at
    most once. A request without a turn leaves no trace.
    """

    def __init__(
        self,
        episode: environment.Episode,
        template: ChatTemplate,
        *,
        clock: Callable[[], datetime] = datetime.now,
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
            return await self._begin(messages, tools, max_tokens, reader)
        return await self._continue(conversation, messages, max_tokens, reader)

    def settled(self, text: str, *, tools: bool = True) -> Message:
        """See ChatTemplate."""
        return self._template.settled(text, tools=tools)

    def _continued(self, messages: Sequence[Message], tools: Sequence[Tool]) -> _Conversation | None:
        candidates = [
            each
            for each in self._conversations
            if not each.closed and each.tools == list(tools) and continues(messages, each.messages)
        ]
        return max(candidates, key=lambda each: len(each.messages), default=None)

    async def _begin(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        max_tokens: int | None,
        reader: TurnReader | None,
    ) -> Reply:
        template = self._template.at(self._clock())
        segment = self._episode.begin_segment(template.render(messages, tools))
        conversation = _Conversation(segment, template, list(tools))
        try:
            reply = await self._sample(conversation, messages, (), max_tokens, reader)
        finally:
            if not segment.token_ids:
                self._episode.discard_segment(segment)
        if segment.token_ids:
            self._conversations.append(conversation)
        return reply

    async def _continue(
        self,
        conversation: _Conversation,
        messages: Sequence[Message],
        max_tokens: int | None,
        reader: TurnReader | None,
    ) -> Reply:
        """Sample the next turn. The recorded messages stay as they are, with thoughts that clients drop."""
        conversation.closed = True
        new = list(messages[len(conversation.messages) :])
        observation = conversation.template.continuation(
            conversation.messages, new, conversation.sampled, conversation.tools
        )
        try:
            together = [*conversation.messages, *new]
            return await self._sample(conversation, together, observation, max_tokens, reader)
        finally:
            conversation.closed = False

    async def _sample(
        self,
        conversation: _Conversation,
        messages: Sequence[Message],
        observation: tuple[int, ...],
        max_tokens: int | None,
        reader: TurnReader | None,
    ) -> Reply:
        """Sample the turn after the messages, and record both. `observation`: tokens of the new messages."""
        segment = conversation.segment
        prompt_tokens = len(segment.prompt_token_ids or ()) + len(segment.token_ids) + len(observation)
        turn = await self._episode.sample_in(segment, max_tokens, reader, observation=observation)
        message = self._message(turn, messages, reader, tools=bool(conversation.tools))
        conversation.messages = [*messages, message]
        conversation.sampled = turn.token_ids
        return Reply(
            message=message,
            finish_reason=_finish_reason(turn, message),
            prompt_tokens=prompt_tokens,
            turn=turn,
        )

    def _message(
        self, turn: Turn, before: Sequence[Message], reader: TurnReader | None, *, tools: bool
    ) -> Message:
        """Return the message of a turn. `reader`: has read its text, up to a stop string."""
        calls_before = sum(len(each.tool_calls) for each in before)
        if reader is None:
            return self._template.parse(turn.token_ids, calls_before=calls_before, tools=tools)
        return self._template.read(reader.text, calls_before=calls_before, tools=tools)


def _finish_reason(turn: Turn, message: Message) -> Literal["stop", "length", "tool_calls"]:
    if turn.finish_reason is FinishReason.LENGTH:
        return "length"
    return "tool_calls" if message.tool_calls else "stop"
