"""The sessions of an endpoint: one for each episode that runs, with a key of its own."""

import asyncio
import hmac
import secrets
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from slipstream.actor.chat.conversation import Conversations
from slipstream.actor.chat.template import ChatTemplate
from slipstream.actor.environment import Episode
from slipstream.actor.program import exchange, refusal, text

T = TypeVar("T")
KEY_BYTES = 32
RETRYABLE = "rate_limit_exceeded"


class Session:
    """One episode at the endpoint.

    Invariant: after `close` no request of the session samples.
    """

    def __init__(
        self, episode: Episode, *, tokens: text.Tokenizer, template: ChatTemplate | None, most_requests: int
    ) -> None:
        self.number = secrets.token_hex(8)
        """Names the session in the URL; no secret."""
        self.key = f"sk-{secrets.token_urlsafe(KEY_BYTES)}"
        self.episode = episode
        self.texts = text.TextConversations(episode, tokens)
        self.chats = None if template is None else Conversations(episode, template)
        self.undelivered = exchange.Undelivered()
        self.last_reply = ""
        """The text of the newest answer."""
        self.last_refusal = ""
        """Why the newest request that was refused was refused."""
        self.overridden: set[str] = set()
        """Parameters of requests that had no effect."""
        self.lost = asyncio.Event()
        """Set when sampling has failed, so that the episode cannot go on."""
        self._most_requests = most_requests
        self._work: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def do(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a request's work; a cancelled request cancels its work.

        Errors: Refusal for too many requests at the same time, and when the episode ends; those of the work.
        """
        if self._closed:
            raise refusal.Refusal(401, "the episode of this key has ended", code="invalid_api_key")
        if len(self._work) >= self._most_requests:
            reason = f"{self._most_requests} requests of this episode are in work"
            raise refusal.Refusal(429, f"{reason} (data.environment.most_requests)", code=RETRYABLE)
        task = asyncio.ensure_future(work())
        self._work.add(task)
        task.add_done_callback(self._ended)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        if task.cancelled():
            raise refusal.Refusal(401, "the episode of this key has ended", code="invalid_api_key")
        return task.result()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._work.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may wait for it any more

    def close(self) -> None:
        """Refuse further requests, and end those in work."""
        self._closed = True
        for task in self._work:
            task.cancel()


class Sessions:
    """The sessions of the episodes that run now."""

    def __init__(self, *, tokens: text.Tokenizer, template: ChatTemplate | None, most_requests: int) -> None:
        """`template`: None for a policy without a chat template, which serves /completions only."""
        self._tokens = tokens
        self._template = template
        self._most_requests = most_requests
        self._open: dict[str, Session] = {}

    @contextmanager
    def open(self, episode: Episode) -> Iterator[Session]:
        """Yield the session of an episode; its key is worth nothing afterwards."""
        session = Session(
            episode, tokens=self._tokens, template=self._template, most_requests=self._most_requests
        )
        self._open[session.number] = session
        try:
            yield session
        finally:
            del self._open[session.number]
            session.close()

    def find(self, number: str, authorization: str) -> Session:
        """Return the session of a URL, for the `authorization` header of its key. Errors: Refusal."""
        scheme, _, key = authorization.partition(" ")
        session = self._open.get(number)
        expected = session.key if session else "sk-none"
        right = hmac.compare_digest(
            key.strip().encode(), expected.encode()
        )  # its time tells nothing of the key
        if scheme.lower() != "bearer" or not right or session is None:
            raise refusal.Refusal(
                401,
                "this is no key of a running episode; use OPENAI_BASE_URL and OPENAI_API_KEY of the process",
                code="invalid_api_key",
            )
        return session
