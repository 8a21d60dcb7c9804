"""A server that an actor starts is restarted when it ends, and never outlives the actor."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from urllib.request import ProxyHandler, build_opener

import pytest
from rollout.fakes import scenario, until
from slipstream.actor.adapters.local_server import LocalServer, ServerFailed
from slipstream.telemetry.logs import Log

SAYS_ITS_ENVIRONMENT = (
    "import os, sys; from http.server import *\n"
    "class Page(BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        self.send_response(200); self.end_headers()\n"
    "        self.wfile.write(repr((os.getpid(), dict(os.environ))).encode())\n"
    "HTTPServer(('127.0.0.1', int(sys.argv[1])), Page).serve_forever()\n"
)
PAGE = (sys.executable, "-c", SAYS_ITS_ENVIRONMENT, "{port}")


@asynccontextmanager
async def local(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, start_seconds: float = 20
) -> AsyncIterator[LocalServer]:
    server = LocalServer(command, env=env or {}, start_seconds=start_seconds, log=Log(pod="test"))
    try:
        yield server
    finally:
        await server.close()


def page(url: str) -> str:
    with build_opener(ProxyHandler({})).open(url, timeout=5) as answer:
        return answer.read().decode()


def pid_of(url: str) -> int:
    return int(page(url).split(",")[0].strip("("))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@scenario
async def test_a_server_has_its_own_variables_and_no_secrets_of_the_actor() -> None:
    os.environ["SLIPSTREAM_TEST_SECRET"] = "hidden"
    try:
        async with local(PAGE, env={"LEVEL": "3"}) as server:
            text = page(await server.url())
    finally:
        del os.environ["SLIPSTREAM_TEST_SECRET"]
    assert "'LEVEL': '3'" in text
    assert "hidden" not in text


@scenario
async def test_a_server_is_restarted_after_its_death_and_ends_with_close() -> None:
    async with local(PAGE) as server:
        first = pid_of(await server.url())
        assert pid_of(await server.url()) == first
        os.kill(first, signal.SIGKILL)
        await until(lambda: server.ended)
        second = pid_of(await server.url())
        assert second != first
    assert not alive(second)


@scenario
async def test_the_error_of_a_server_that_does_not_start_has_the_reason() -> None:
    async with local((sys.executable, "-c", "raise SystemExit('no {port}')")) as server:
        with pytest.raises(ServerFailed, match=r"the server ended with status 1: no \d+"):
            await server.url()
    silent = (sys.executable, "-c", "__import__('time').sleep(60)")
    async with local(silent, start_seconds=0.3) as server:
        with pytest.raises(ServerFailed, match=r"no answer after 0\.3 s: it wrote nothing"):
            await server.url()
    async with local(("no-such-program", "{port}")) as server:
        with pytest.raises(ServerFailed, match="there is no program no-such-program"):
            await server.url()
