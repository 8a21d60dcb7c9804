"""Tools of real MCP servers: over standard input and output and over HTTP, also of servers that fail."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from actor.test_chat_tools import QWEN, call, play, resources, result
from mcp.client._transport import TransportStreams
from rollout.fakes import metric, scenario, until
from slipstream.actor import try_environment
from slipstream.actor.adapters.local_server import ServerFailed, free_port
from slipstream.actor.chat_tools import ChatTools, make_chat_tools, open_chat_tools
from slipstream.actor.own_environment import EnvironmentUnusable
from slipstream.actor.tools.make_tools import open_servers
from slipstream.actor.tools.mcp_connection import McpConnection
from slipstream.actor.tools.mcp_process import ServerProcess
from slipstream.actor.tools.mcp_tools import UNAVAILABLE
from slipstream.config import ConfigError
from slipstream.config.environments import ChatToolsEnvironment
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics

FOLDER = Path(__file__).parent
SERVER = [sys.executable, str(FOLDER / "mcp_server.py")]
HOSTILE = [sys.executable, str(FOLDER / "hostile_mcp_server.py")]


def config(*tools: dict[str, Any], **more: Any) -> ChatToolsEnvironment:
    return ChatToolsEnvironment.model_validate({"tools": [{"kind": "mcp", **tool} for tool in tools], **more})


@asynccontextmanager
async def opened(
    *tools: dict[str, Any], metrics: Metrics | None = None, log: io.StringIO | None = None, **more: Any
) -> AsyncIterator[ChatTools]:
    """Yield the environment with the tools of servers."""
    made = config(*tools, **more)
    async with open_servers(made, Log(pod="actor", stream=log or io.StringIO())) as servers:
        yield make_chat_tools(made, QWEN, resources(metrics), servers)


async def answered(made: ChatTools, name: str, **arguments: Any) -> str:
    """Return what the policy reads of a call."""
    _, prompts = await play(made, call(name, **arguments), "done")
    return result(prompts)


@asynccontextmanager
async def http_server(port: int = 0) -> AsyncIterator[tuple[str, subprocess.Popen[bytes]]]:
    """Yield the URL of a server over HTTP."""
    port = port or free_port()
    process = subprocess.Popen([*SERVER, str(port)], stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    try:
        await _listening(port)
        yield f"http://127.0.0.1:{port}/mcp", process
    finally:
        process.kill()
        process.wait()


async def _listening(port: int) -> None:
    for _ in range(600):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return
    raise AssertionError("the server does not listen")


def gone(pid: int) -> bool:
    """Return whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_policy_reads_the_schemas_of_a_server_and_the_results_of_its_tools(transport: str) -> None:
    @scenario
    async def run() -> None:
        metrics = Metrics()
        async with http_server() as (url, _):
            where = {"command": SERVER} if transport == "stdio" else {"url": url}
            allow = ["add", "parts", "broken", "slow", "large"]
            async with opened({**where, "allow": allow, "seconds": 6}, metrics=metrics) as made:
                played, prompts = await play(made, call("add", a=2, b=3), call("parts"), "done")
                assert '"description": "Add two numbers."' in prompts[0]
                assert '"a": {"title": "A", "type": "integer"}' in prompts[0]
                assert '"count"' not in prompts[0], "it is not allowed"
                assert result(prompts[:2]) == "5"
                assert result(prompts) == "first\n[image image/png]\nlast"
                assert {each.name: each.value for each in played.completion.rewards} == {
                    "tool_calls": 2.0,
                    "failed_tool_calls": 0.0,
                }
                assert "no ab" in await answered(made, "broken", word="ab")
                assert "Error: " in await answered(made, "add", a="many", b=1)
                assert await answered(made, "slow", seconds=60) == "Error: the call took more than 6 s"
                large = await answered(made, "large", characters=9000)
                assert large.endswith("x\n[cut: 5000 more characters]")
                assert "there is no tool 'count'" in await answered(made, "count")
        assert metric(metrics, "tool_calls_total", tool="add", outcome="ok") == 1
        assert metric(metrics, "tool_calls_total", tool="slow", outcome="timeout") == 1
        assert metric(metrics, "tool_calls_total", tool="broken", outcome="failed") == 1

    run()


@scenario
async def test_a_server_gets_no_variable_of_the_actor_but_path_home_and_the_locale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_ACTOR", "x")
    async with opened({"command": SERVER, "env": {"MINE": "1"}}) as made:
        names = set((await answered(made, "environment")).split())
    assert "MINE" in names
    assert names <= {
        *("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONUNBUFFERED", "MINE"),
        "SLIPSTREAM_RUN_TOKEN",
    }


@scenario
async def test_a_server_that_is_killed_in_a_call_is_text_and_the_next_call_starts_another() -> None:
    metrics = Metrics()
    async with opened({"command": SERVER}, metrics=metrics) as made:
        first = int(await answered(made, "process"))
        waiting = asyncio.create_task(answered(made, "slow", seconds=60))
        await asyncio.sleep(0.5)
        os.kill(first, signal.SIGKILL)
        started = time.monotonic()
        assert await waiting == UNAVAILABLE
        assert time.monotonic() - started < 5
        second = int(await answered(made, "process"))
        assert second != first
        assert await answered(made, "leave") == UNAVAILABLE
        assert await answered(made, "add", a=1, b=1) == "2"
    assert metric(metrics, "tool_calls_total", tool="slow", outcome="unavailable") == 1
    await until(lambda: gone(second))


@scenario
async def test_a_server_over_http_that_goes_away_and_comes_back_is_called_again() -> None:
    port = free_port()
    tool = {"url": f"http://127.0.0.1:{port}/mcp", "seconds": 5, "start_seconds": 10}
    async with http_server(port) as (_, process), opened(tool) as made:
        assert await answered(made, "add", a=1, b=1) == "2"
        waiting = asyncio.create_task(answered(made, "slow", seconds=4))
        await asyncio.sleep(0.5)
        process.kill()
        process.wait()
        assert await waiting in (UNAVAILABLE, "Error: the call took more than 5 s")
        assert await answered(made, "add", a=1, b=1) == UNAVAILABLE
        async with http_server(port):
            await asyncio.sleep(2.5)
            texts = [await answered(made, "add", a=1, b=1) for _ in range(2)]
            assert texts[-1] == "2", texts


@scenario
async def test_with_per_episode_no_episode_sees_the_state_of_another_and_the_servers_end() -> None:
    tool = {"command": SERVER, "per_episode": True, "allow": ["count", "process"]}

    async def episode(made: ChatTools) -> int:
        texts = call("count", step=2), call("count", step=3), call("process"), "done"
        _, prompts = await play(made, *texts)
        assert [result(prompts[: turn + 1]) for turn in (1, 2)] == ["2", "5"]
        return int(result(prompts))

    async with opened(tool) as made:
        pids = await asyncio.gather(*(episode(made) for _ in range(3)))
        assert len(set(pids)) == 3
        await until(lambda: all(map(gone, pids)))


@scenario
async def test_further_episodes_wait_for_a_server_of_their_own_and_those_without_a_call_start_none() -> None:
    tool = {"command": SERVER, "per_episode": True, "most_servers": 1, "allow": ["process"]}
    async with opened(tool) as made:
        one, two = await asyncio.gather(answered(made, "process"), answered(made, "process"))
        assert one != two
        started = time.monotonic()
        await play(made, "no call")
        assert time.monotonic() - started < 0.3, "a server takes longer to start"


@scenario
async def test_two_hundred_episodes_share_a_server() -> None:
    metrics = Metrics()
    async with opened({"command": SERVER}, metrics=metrics) as made:
        texts = await asyncio.gather(*(answered(made, "add", a=number, b=1) for number in range(200)))
    assert texts == [str(number + 1) for number in range(200)]
    assert metric(metrics, "tool_calls_total", tool="add", outcome="ok") == 200


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("no tools", "the server has no tools"),
        ("schema of no object", "cannot be read: ValidationError"),
        ("schema with a wrong type", "5 is not valid"),
        ("schema that is a text", "cannot be read: ValidationError"),
        ("two tools of one name", "is the second tool with the name f"),
        ("many tools", "the server has 200 tools"),
        ("a tool without a name", "cannot be read: ValidationError"),
        ("huge tools", "tokens of each prompt, and the context has"),
        ("endless list", "more than 20 pages"),
        ("silent", "no list of tools after 2 s"),
        ("ends", "it ended with status 1; its error output ends with: no database no database"),
    ],
)
def test_a_server_that_cannot_be_used_is_an_error_at_the_start(mode: str, reason: str) -> None:
    @scenario
    async def run() -> None:
        with pytest.raises(EnvironmentUnusable) as raised:
            async with opened({"command": [*HOSTILE, mode], "start_seconds": 2}):
                raise AssertionError("it was opened")
        assert reason in str(raised.value.problem)
        assert raised.value.problem.key.startswith("data.environment.tools")

    run()


@scenario
async def test_an_actor_does_not_start_without_the_server_that_it_is_to_reach() -> None:
    made = config({"url": f"http://127.0.0.1:{free_port()}/mcp", "start_seconds": 5})
    with pytest.raises(ConfigError, match=r"tools\.0\.url: the tools of the server cannot be read"):
        async with open_chat_tools(made, QWEN, resources()):
            raise AssertionError("it was opened")


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("endless line", UNAVAILABLE),
        ("noise", "quiet"),
        ("wrong result", "Error: the tool answered what is no result: ValidationError"),
        ("another answer", "Error: the call took more than 2 s"),
    ],
)
def test_whatever_a_server_answers_the_policy_reads_a_text(mode: str, text: str) -> None:
    @scenario
    async def run() -> None:
        async with opened({"command": [*HOSTILE, mode], "seconds": 2}) as made:
            assert await answered(made, "f") == text
            assert await answered(made, "f") == text, "it goes on so"

    run()


@scenario
async def test_the_log_says_what_is_wrong_with_an_answer_that_is_no_result() -> None:
    log = io.StringIO()
    async with opened({"command": [*HOSTILE, "wrong result"]}, log=log) as made:
        await answered(made, "f")
    (line,) = log.getvalue().splitlines()
    assert "a tool answered what is no result tool=f" in line
    assert "ValidationError: " in line
    assert "a text" in line, "it quotes the answer"


class Breaking:
    """A server whose connection ends with an error."""

    why = ""

    @asynccontextmanager
    async def transport(self, ended: asyncio.Event) -> AsyncIterator[TransportStreams]:
        async with ServerProcess(SERVER, env={}).transport(ended) as streams:
            yield streams
        raise ConnectionResetError("the network is gone")


@scenario
async def test_the_log_says_why_a_connection_that_was_made_has_ended() -> None:
    log = io.StringIO()
    connection = McpConnection(Breaking(), start_seconds=30, log=Log(pod="actor", stream=log))
    await connection.tools()
    waiting = asyncio.create_task(connection.call("slow", {"seconds": 60}, seconds=60))
    await asyncio.sleep(0.2)
    await connection.close()
    with pytest.raises(ServerFailed, match=r"^the connection ended during a call of slow$"):
        await waiting
    assert 'failed error="ConnectionResetError: the network is gone"' in log.getvalue()


@scenario
async def test_a_server_that_hears_nothing_any_more_is_started_again() -> None:
    async with opened({"command": SERVER, "seconds": 1}) as made:
        first = int(await answered(made, "process"))
        os.kill(first, signal.SIGSTOP)
        assert await answered(made, "add", a=1, b=1) == "Error: the call took more than 1 s"
        await until(lambda: gone(first), seconds=10)
        assert await answered(made, "add", a=1, b=1) == "2"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"word": "\\ud800"}', "they have characters that are no valid Unicode"),
        ('{"word": NaN}', "NaN and Infinity are no numbers of JSON"),
        ('{"word": ' + "[" * 80 + "]" * 80 + "}", "they are nested more than 64 levels deep"),
    ],
)
def test_arguments_that_cannot_be_sent_are_refused_and_the_server_goes_on(arguments: str, text: str) -> None:
    @scenario
    async def run() -> None:
        written = f'<tool_call>{{"name": "broken", "arguments": {arguments}}}</tool_call>'
        async with opened({"command": SERVER}) as made:
            _, prompts = await play(made, written, call("process"), "done")
            assert result(prompts[:2]) == f"Error: wrong arguments: {text}"
            assert result(prompts).isdigit()

    run()


@pytest.mark.parametrize(
    ("tool", "key", "severity"),
    [
        ({"command": SERVER}, None, None),
        ({"command": SERVER, "allow": ["missing"]}, "data.environment.tools.0", "error"),
        ({"command": ["no-such-program"]}, "data.environment.tools.0.command", "error"),
        ({"url": "http://127.0.0.1:9/mcp", "start_seconds": 5}, "data.environment.tools.0.url", "note"),
    ],
)
def test_validate_starts_the_server_in_a_process_of_its_own(
    tool: dict[str, Any], key: str | None, severity: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    try_environment.main(config(tool).model_dump_json())
    problem = json.loads(capsys.readouterr().out.strip().rpartition("\n")[2])
    assert (problem and (problem["key"], problem["severity"])) == (key and (key, severity))


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        ({}, "neither of `command` and `url` is set"),
        ({"command": ["a"], "url": "http://a"}, "both of `command` and `url` is set"),
        ({"url": "http://a", "per_episode": True}, "`per_episode` is set"),
        ({"url": "http://a", "env": {"A": "1"}}, "`env` is set"),
        ({"url": "ftp://a"}, "should match pattern"),
        ({"command": ["a"], "allow": []}, "at least 1 item"),
    ],
)
def test_a_configuration_without_exactly_one_server_is_refused(tool: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        config(tool)
