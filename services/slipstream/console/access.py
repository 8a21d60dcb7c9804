"""Access to the console: its own pages, at the hosts that it answers to, and beyond loopback with a token.

    request ── Host ── Origin ── token ── custom header of a POST ── application
               421     403       401      403

A page of another site must not read a run: it may make a name of its own point at this machine (DNS
rebinding), which the check of the Host refuses, or send requests in the name of the user, which the checks of
Origin and of the custom header refuse.
"""

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs, urlsplit

from slipstream.config.addresses import is_loopback
from slipstream.verifier.http.access import App, Message, Receive, Send, once

COOKIE: Final = "slipstream_console"
"""Begins the name of the cookie; the port follows, because a host has the same cookies at all ports."""
HEADER: Final = b"x-slipstream"
"""Header that every POST has. A browser sends it to another origin only after asking that origin."""
PROBES: Final = frozenset({"/startupz", "/livez", "/readyz"})
LOGIN: Final = "/login"
LONGEST_FORM: Final = 4096
WEEK_SECONDS: Final = 7 * 24 * 3600
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SAFE: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
LOGIN_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Slipstream console</title>
<link rel="stylesheet" href="/static/style.css"><main class="login"><h1>Slipstream console</h1>
<p>{words}</p><form method="post" action="/login"><label>Token <input name="token" type="password"
autocomplete="current-password" required></label> <button>Open</button></form></main></html>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What the console asks of a request."""

    token: str | None = None
    """None: no token is needed, because only this machine reaches the console."""
    hosts: frozenset[str] = frozenset()
    """Names beside those of loopback that the console answers to."""

    def knows(self, host: str) -> bool:
        """Return whether a Host header names the console."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self.hosts or is_loopback(f"{name}:0")

    def opens(self, token: str) -> bool:
        """Return whether this is the token."""
        return self.token is None or secrets.compare_digest(token.encode(), self.token.encode())

    @property
    def cookie(self) -> str:
        """The cookie of a visitor who has entered the token, which does not follow from the cookie."""
        return hmac.new((self.token or "").encode(), COOKIE.encode(), "sha256").hexdigest()

    def has_entered(self, cookie: str) -> bool:
        """Return whether this is the cookie of a visitor who has entered the token."""
        return self.token is None or secrets.compare_digest(cookie.encode(), self.cookie.encode())


class Refused(Exception):
    """A request that may not come in."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Guard:
    """The checks in front of the application, and the headers of its answers."""

    def __init__(self, app: App, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Check one request. Answers of every kind get the headers of SAFE."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sending = _with_headers(send)
        try:
            await self._answer(scope, receive, sending)
        except Refused as refused:
            await _say(sending, refused.status, str(refused).encode(), b"text/plain; charset=utf-8")

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        path, method = scope["path"], scope["method"]
        if path in PROBES:
            await self._app(scope, receive, send)
            return
        self._check_origin(headers)
        if path == LOGIN and method == "POST":
            await self._log_in(headers, receive, send)
        elif not (self._has_token(headers) or path.startswith("/static/")):
            await _say(send, 401, LOGIN_PAGE.format(words="This console needs its token.").encode())
        elif method not in ("GET", "HEAD") and HEADER not in headers:
            raise Refused(403, f"a {method} needs the header {HEADER.decode()}")
        elif method == "POST":
            await self._app(scope, once(await _body(receive), receive), send)
        else:
            await self._app(scope, receive, send)

    def _check_origin(self, headers: Mapping[bytes, bytes]) -> None:
        """Errors: Refused for a foreign Host or Origin."""
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._access.knows(host):
            raise Refused(421, f"the console does not answer to {host[:80]!a}; name it with --host-name")
        origin = headers.get(b"origin")
        if origin is not None and _netloc(origin.decode("latin-1")) != host:
            raise Refused(403, "a page of another site may not use the console")
        if headers.get(b"sec-fetch-site") == b"cross-site" and headers.get(b"sec-fetch-mode") != b"navigate":
            raise Refused(403, "a page of another site may not load parts of the console")

    def _has_token(self, headers: Mapping[bytes, bytes]) -> bool:
        bearer = headers.get(b"authorization", b"").decode("latin-1").removeprefix("Bearer ")
        return self._access.opens(bearer) or self._access.has_entered(_cookie(headers))

    async def _log_in(self, headers: Mapping[bytes, bytes], receive: Receive, send: Send) -> None:
        form = parse_qs((await _body(receive)).decode("latin-1"))
        (token,) = form.get("token", [""])[:1]
        if not self._access.opens(token):
            words = "That is not the token of this console."
            await _say(send, 401, LOGIN_PAGE.format(words=words).encode())
            return
        secure = "; Secure" if headers.get(b"x-forwarded-proto") == b"https" else ""
        named = f"{_cookie_name(headers)}={self._access.cookie}"
        cookie = f"{named}; Path=/; HttpOnly; SameSite=Lax; Max-Age={WEEK_SECONDS}{secure}"
        await _say(send, 303, b"", headers=[(b"location", b"/"), (b"set-cookie", cookie.encode("latin-1"))])


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _cookie(headers: Mapping[bytes, bytes]) -> str:
    try:
        cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
    except CookieError:
        return ""
    name = _cookie_name(headers)
    return cookies[name].value if name in cookies else ""


def _cookie_name(headers: Mapping[bytes, bytes]) -> str:
    """Return the name of the cookie at the port at which the browser reaches the console."""
    try:
        port = urlsplit(f"//{headers.get(b'host', b'').decode('latin-1')}").port
    except ValueError:
        port = None
    return COOKIE if port is None else f"{COOKIE}_{port}"


async def _body(receive: Receive) -> bytes:
    """Return the body of a small request. Errors: Refused."""
    body: bytes = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > LONGEST_FORM:
            raise Refused(413, f"the body is over {LONGEST_FORM} bytes")
        if not message.get("more_body", False):
            return body


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *SAFE]}
        await send(message)

    return sending


async def _say(
    send: Send,
    status: int,
    body: bytes,
    kind: bytes = b"text/html; charset=utf-8",
    *,
    headers: list[tuple[bytes, bytes]] | None = None,
) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", kind), length, *(headers or [])],
        }
    )
    await send({"type": "http.response.body", "body": body})
