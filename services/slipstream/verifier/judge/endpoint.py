"""Calls of an endpoint with OpenAI's chat protocol: bounded in number, time and size, and tried again.

    a slot ─▶ call ─┬─▶ reply
       ▲            └─▶ no reply, 408, 429, 5xx ─▶ wait (jitter, Retry-After) ─┐
       └────────────────────────────────────────────────────────────────────────┘

A call waits for a free slot. No slot is held between two tries.
"""

import asyncio
import json
import random
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar

from slipstream.config import problem, rewards
from slipstream.verifier.missing_resource import MissingResource

if TYPE_CHECKING:
    import httpx

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 60.0
MAX_REPLY_BYTES = 4 * 1024 * 1024
WORTH_ANOTHER_TRY = frozenset({408, 409, 425, 429})
Result = TypeVar("Result")


class JudgeFailed(Exception):
    """The endpoint gave no usable reply, as the message says. Another try would not help."""


class TryAgain(JudgeFailed):
    """Another try may succeed, after `seconds` if the endpoint gave a Retry-After."""

    def __init__(self, message: str, *, seconds: float | None = None) -> None:
        super().__init__(message)
        self.seconds = seconds


class ChatEndpoint:
    """One model behind one endpoint."""

    def __init__(self, config: rewards.JudgeConfig) -> None:
        """Errors: MissingResource if a named file cannot be read; ValueError if the key is empty."""
        self._config = config
        self._trust = _trust(config)
        self._slots = asyncio.Semaphore(config.concurrency)
        self._client: httpx.AsyncClient | None = None
        _bearer(config)

    async def ask(self, messages: list[dict[str, str]], read: Callable[[str], Result]) -> Result:
        """Return what `read` makes of the reply; try again if it raises ValueError. Errors: JudgeFailed."""
        return await with_retries(lambda: self._once(messages, read), retries=self._config.retries)

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _once(self, messages: list[dict[str, str]], read: Callable[[str], Result]) -> Result:
        import httpx

        async with self._slots:
            try:
                async with asyncio.timeout(self._config.timeout_seconds):
                    body = await self._post(messages)
            except TimeoutError as error:
                raise TryAgain(f"no reply within {self._config.timeout_seconds:g} s") from error
            except httpx.HTTPError as error:
                raise TryAgain(f"{self._config.url}: {type(error).__name__}: {error}") from error
        try:
            return read(_content(body))
        except ValueError as error:
            raise TryAgain(str(error)) from error

    async def _post(self, messages: list[dict[str, str]]) -> bytes:
        """Return the body of a reply with status 200. Errors: JudgeFailed."""
        url, body = f"{self._config.url.rstrip('/')}/chat/completions", self._body(messages)
        headers = {"content-type": "application/json", **_bearer(self._config)}
        async with self._connected().stream("POST", url, content=body, headers=headers) as reply:
            parts, size = [], 0
            async for part in reply.aiter_bytes():
                size += len(part)
                if size > MAX_REPLY_BYTES:
                    raise JudgeFailed(f"a reply of more than {MAX_REPLY_BYTES} bytes")
                parts.append(part)
        text = b"".join(parts)
        if reply.status_code != 200:
            raise _refusal(reply.status_code, text, reply.headers.get("retry-after"))
        return text

    def _body(self, messages: list[dict[str, str]]) -> bytes:
        request: dict[str, Any] = {
            "model": self._config.model,
            "messages": messages,
            "max_tokens": self._config.max_tokens,
        }
        if self._config.temperature is not None:
            request["temperature"] = self._config.temperature
        if self._config.reply == "json":
            request["response_format"] = {"type": "json_object"}
        return json.dumps(request).encode()

    def _connected(self) -> "httpx.AsyncClient":
        import httpx

        if self._client is None:
            limits = httpx.Limits(max_connections=self._config.concurrency)
            self._client = httpx.AsyncClient(verify=self._trust, timeout=None, limits=limits, trust_env=False)
        return self._client


async def with_retries(once: Callable[[], Awaitable[Result]], *, retries: int) -> Result:
    """Return the first result of at most 1 + `retries` tries. Errors: JudgeFailed of the last."""
    for attempt in range(retries + 1):
        try:
            return await once()
        except TryAgain as error:
            pause = pause_seconds(attempt, wanted=error.seconds)
            if pause is None:
                raise JudgeFailed(f"{error} (no further try: it asks for {error.seconds:g} s)") from error
            if attempt == retries:
                raise JudgeFailed(f"{error} (try {attempt + 1} of {retries + 1})") from error
        await asyncio.sleep(pause)
    raise AssertionError("the last try returns or raises")


def pause_seconds(attempt: int, *, wanted: float | None) -> float | None:
    """Return the seconds to wait after try number `attempt`, from 0; None if that is too long to wait.

    The pause doubles with each try and has jitter of up to 50 %, so that callers do not retry together. It is
    never shorter than `wanted`, the seconds of a Retry-After.
    """
    if wanted is not None and wanted > LONGEST_PAUSE_SECONDS:
        return None
    pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(attempt, 16), LONGEST_PAUSE_SECONDS)
    return max(pause, wanted or 0.0) * random.uniform(1.0, 1.5)


def retry_after(header: str | None) -> float | None:
    """Return the seconds of a Retry-After header, which is a number or a date; None for anything else."""
    if header is None:
        return None
    if header.strip().isdecimal():
        return float(header)
    try:
        until = parsedate_to_datetime(header)
    except ValueError:
        return None
    left = until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)
    return max(0.0, float(left.total_seconds()))


def _refusal(status: int, body: bytes, wait: str | None) -> JudgeFailed:
    reason = f"the endpoint answered {status}: {body[:120].decode('utf-8', 'replace')}"
    if status in WORTH_ANOTHER_TRY or status >= 500:
        return TryAgain(reason, seconds=retry_after(wait))
    return JudgeFailed(reason)


def _content(body: bytes) -> str:
    """Return the text of a chat completion. Errors: ValueError."""
    try:
        choice = json.loads(body)["choices"][0]
        content = choice["message"]["content"]
    except (ValueError, RecursionError, LookupError, TypeError) as error:
        raise ValueError(f"the endpoint sent no chat completion: {body[:80]!a}") from error
    if not isinstance(content, str) or choice.get("finish_reason") == "length":
        raise ValueError(f"the judge's reply has no text, or max_tokens cut it off: {str(content)[-60:]!a}")
    return content


def _bearer(config: rewards.JudgeConfig) -> dict[str, str]:
    """Return the header with the key. Errors: MissingResource if unreadable; Invalid if empty."""
    if config.api_key_file is None:
        return {}
    try:
        key = config.api_key_file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = f"{config.api_key_file} cannot be read: {error}"
        raise MissingResource(reason, key="api_key_file") from error
    if not key or not key.isprintable():
        raise problem.Invalid(f"{config.api_key_file} holds no key on one line", key="api_key_file")
    return {"authorization": f"Bearer {key}"}


def _trust(config: rewards.JudgeConfig) -> ssl.SSLContext:
    """Return the TLS context. Errors: MissingResource if the authority cannot be read."""
    try:
        return ssl.create_default_context(cafile=config.authority)
    except OSError as error:
        reason = f"{config.authority} cannot be read: {error}"
        raise MissingResource(reason, key="authority") from error
