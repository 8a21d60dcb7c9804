"""The tool `python`: its results, the state between its calls, and the loss of a verifier during a call."""

import asyncio
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from actor.test_chat_tools import QWEN, call, play, result
from rollout.fakes import prompt
from sandbox.processes import descendants
from slipstream.actor.chat_tools import ChatTools
from slipstream.actor.environments import EnvironmentResources, open_environment
from slipstream.actor.tools.python_tool import (
    NO_OUTPUT,
    UNAVAILABLE,
    Notebook,
    ProgramClient,
    ProgramTool,
    python_definition,
)
from slipstream.config import RpcConfig, RunConfig
from slipstream.config.environments import PythonTool
from slipstream.rpc.channel import open_channel
from slipstream.rpc.errors import Unreachable
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.v1 import verifier_pb2 as pb

Answer = Callable[[pb.RunProgramRequest], pb.RunProgramResponse]


class FakeRunner:
    """Records the programs, and responds with `answer`."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[pb.RunProgramRequest] = []
        self._answer = answer

    async def run(self, request: pb.RunProgramRequest) -> pb.RunProgramResponse:
        self.requests.append(request)
        return self._answer(request)


def echo(request: pb.RunProgramRequest) -> pb.RunProgramResponse:
    """Return a response in which each cell prints its own text."""
    return pb.RunProgramResponse(
        output=request.code + "\n", end=pb.PROGRAM_END_FINISHED, digests=[*request.earlier, request.code]
    )


def ended(end: pb.ProgramEnd, output: str = "") -> Answer:
    digests = ["d"] if end in (pb.PROGRAM_END_FINISHED, pb.PROGRAM_END_RAISED) else []
    return lambda request: pb.RunProgramResponse(
        output=output, end=end, digests=[*request.earlier, *digests][-1 - len(request.earlier) :]
    )


def tool(runner: Any, *, log: io.StringIO | None = None, **settings: Any) -> Notebook:
    return Notebook(
        PythonTool(**settings), runner, group="p1", log=Log(pod="actor", stream=log or io.StringIO())
    )


def texts(called: Notebook, *programs: Any) -> list[str]:
    async def play() -> list[str]:
        return [(await called.answer({"code": code}))[1] for code in programs]

    return asyncio.run(play())


def test_the_output_is_the_text_and_the_limits_are_those_of_the_tool() -> None:
    runner = FakeRunner(echo)
    assert texts(tool(runner, seconds=3.0, memory_mib=128), "a", "b") == ["a", "b"]
    assert [(r.code, r.seconds, r.memory_mib, r.group) for r in runner.requests] == [
        ("a", 3.0, 128, "p1"),
        ("b", 3.0, 128, "p1"),
    ]
    assert [list(r.earlier) for r in runner.requests] == [[], []]


def test_with_state_the_earlier_programs_are_sent_again() -> None:
    runner = FakeRunner(echo)
    assert texts(tool(runner, state=True), "a", "b", "c") == ["a", "b", "c"]
    assert [list(r.earlier) for r in runner.requests] == [[], ["a"], ["a", "b"]]


@pytest.mark.parametrize(
    ("end", "kept"),
    [
        (pb.PROGRAM_END_RAISED, True),
        (pb.PROGRAM_END_EXITED, False),
        (pb.PROGRAM_END_LATE, False),
        (pb.PROGRAM_END_OUTPUT, False),
        (pb.PROGRAM_END_DISK, False),
        (pb.PROGRAM_END_THREADS, False),
    ],
)
def test_a_killed_program_has_a_text_and_leaves_no_state(end: pb.ProgramEnd, *, kept: bool) -> None:
    runner = FakeRunner(ended(end, "half"))
    text, _ = texts(tool(runner, state=True, seconds=2.0), "a", "b")
    assert list(runner.requests[1].earlier) == (["a"] if kept else [])
    assert text.endswith("half")
    assert ("none of its names are kept" in text) is not kept
    assert ("took more than 2 s" in text) is (end == pb.PROGRAM_END_LATE)


def test_a_late_program_says_that_the_earlier_ones_count() -> None:
    answers = iter([echo, ended(pb.PROGRAM_END_LATE)])
    runner = FakeRunner(lambda request: next(answers)(request))
    assert texts(tool(runner, state=True), "a", "b")[1] == (
        "[the program was ended: it took more than 10 s, together with the earlier ones, which run again in "
        "each call; none of its names are kept]"
    )


def test_a_program_without_output_is_answered_with_a_text() -> None:
    assert texts(tool(FakeRunner(ended(pb.PROGRAM_END_FINISHED))), "x = 1") == [NO_OUTPUT]


def test_a_changed_output_of_an_earlier_program_is_reported_once() -> None:
    clock = iter("0123456789")

    def ticking(request: pb.RunProgramRequest) -> pb.RunProgramResponse:
        return pb.RunProgramResponse(
            output="out", end=pb.PROGRAM_END_FINISHED, digests=[next(clock) for _ in [*request.earlier, 0]]
        )

    first, second, third = texts(tool(FakeRunner(ticking), state=True), "a", "b", "c")
    assert first == "out"
    assert second == "[program 1 printed something else when it ran again for this call]\nout"
    assert third == "[program 2 printed something else when it ran again for this call]\nout"


@pytest.mark.parametrize("code", [None, 5, ["print(1)"], "\ud800", "#" * 65_537])
def test_arguments_without_a_program_are_answered_with_a_text_and_run_nothing(code: Any) -> None:
    runner = FakeRunner(echo)
    assert texts(tool(runner), code)[0].startswith("Error: the ")
    assert not runner.requests


def test_the_state_has_a_size_limit() -> None:
    runner = FakeRunner(echo)
    texts_ = texts(tool(runner, state=True), "#" * 40_000, "#" * 40_000, "1")
    assert texts_[1] == (
        "Error: the program together with the earlier ones has 80000 characters; at most 65536 can be run"
    )
    assert texts_[2] == "1"


def test_an_unreachable_verifier_is_a_text_and_a_line_in_the_log() -> None:
    def lost(_: pb.RunProgramRequest) -> pb.RunProgramResponse:
        raise Unreachable("run a program: gave up after 4 s: 10.0.0.7 refused")

    lines = io.StringIO()
    assert texts(tool(FakeRunner(lost), log=lines), "1") == [UNAVAILABLE]
    assert "10.0.0.7 refused" in lines.getvalue()
    assert "10.0.0.7" not in UNAVAILABLE


def test_two_concurrent_calls_are_two_cells_in_sequence() -> None:
    runner = FakeRunner(echo)
    called = tool(runner, state=True)

    async def play() -> None:
        await asyncio.gather(called.answer({"code": "a"}), called.answer({"code": "b"}))

    asyncio.run(play())
    assert [list(r.earlier) for r in runner.requests] == [[], ["a"]]


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (pb.PROGRAM_END_FINISHED, "ok"),
        (pb.PROGRAM_END_RAISED, "failed"),
        (pb.PROGRAM_END_EXITED, "failed"),
        (pb.PROGRAM_END_LATE, "timeout"),
        (pb.PROGRAM_END_OUTPUT, "failed"),
    ],
)
def test_the_outcome_of_a_call_is_that_of_its_program(end: pb.ProgramEnd, outcome: str) -> None:
    assert asyncio.run(tool(FakeRunner(ended(end))).answer({"code": "1"}))[0] == outcome


def test_each_episode_has_its_own_state() -> None:
    runner = FakeRunner(echo)
    offered = ProgramTool(PythonTool(state=True), runner, log=Log(pod="actor", stream=io.StringIO()))
    texts(offered.for_episode(prompt()), "a")
    texts(offered.for_episode(prompt()), "b")
    assert [list(r.earlier) for r in runner.requests] == [[], []]
    assert runner.requests[0].group == prompt().prompt_id


def test_the_definition_says_whether_names_are_kept() -> None:
    kept, anew = (
        python_definition(PythonTool(name="run", state=state, seconds=4.0)) for state in (True, False)
    )
    assert json.loads(json.dumps(kept))["function"]["parameters"]["required"] == ["code"]
    assert kept["function"]["name"] == "run"
    assert "4 seconds" in kept["function"]["description"]
    assert "are still there" in kept["function"]["description"]
    assert "starts anew" in anew["function"]["description"]


class Verifier:
    """A verifier as a process, always at the same port."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "verifier.program_server", str(self.port)],
            env={**os.environ, "PYTHONPATH": "services:tests"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == f"127.0.0.1:{self.port}"

    def kill(self) -> list[int]:
        """Kill the verifier alone, and return the processes that it had."""
        family = descendants(self.process.pid)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        return family


async def killed_in_a_call(*, restart: bool) -> tuple[str, str, list[int]]:
    """Kill the verifier during a program; return the tool's responses to this program and to the next one."""
    verifier = await asyncio.to_thread(Verifier)
    try:
        async with open_channel(f"127.0.0.1:{verifier.port}", RpcConfig()) as channel:
            config = RunConfig.model_validate({"verifier": {"timeout_seconds": 20.0 if restart else 3.0}})
            called = tool(ProgramClient(channel, config), state=True, seconds=2.0, memory_mib=256)
            assert (await called.answer({"code": "x = 20"}))[1] == NO_OUTPUT
            running = asyncio.ensure_future(called.answer({"code": "import time; time.sleep(1); x += 1; x"}))
            await asyncio.sleep(0.4)
            family = await asyncio.to_thread(verifier.kill)
            if restart:
                await asyncio.to_thread(verifier.start)
            _, text = await running
            if not restart:
                await asyncio.to_thread(verifier.start)
            return text, (await called.answer({"code": "x"}))[1], family
    finally:
        verifier.kill()


def test_a_call_is_repeated_with_its_state_when_the_verifier_is_killed_during_it() -> None:
    text, after, family = asyncio.run(killed_in_a_call(restart=True))
    assert (text, after) == ("21", "21")
    assert left(family) == []


def test_a_verifier_that_stays_unreachable_is_a_text_and_the_state_before_the_call_is_kept() -> None:
    text, after, _ = asyncio.run(killed_in_a_call(restart=False))
    assert (text, after) == (UNAVAILABLE, "20")


def test_an_actors_environment_runs_the_policys_programs_in_a_verifier() -> None:
    async def run() -> None:
        verifier = await asyncio.to_thread(Verifier)
        tools = [{"kind": "python", "state": True, "seconds": 5, "memory_mib": 256}]
        environment = {"kind": "chat_tools", "tools": tools}
        config = RunConfig.model_validate({"data": {"kind": "addition", "environment": environment}})
        try:
            async with open_channel(f"127.0.0.1:{verifier.port}", config.rpc) as channel:
                resources = EnvironmentResources(
                    config=config,
                    tokens=QWEN,
                    verifier=channel,
                    metrics=Metrics(),
                    log=Log(pod="actor", stream=io.StringIO()),
                )
                async with open_environment(config.data.environment, resources) as opened:
                    assert isinstance(opened, ChatTools)
                    turns = [call("python", code="x = 6"), call("python", code="x * 7"), "It is 42."]
                    played, contexts = await play(opened, *turns)
            assert [result(contexts[:2]), result(contexts)] == [NO_OUTPUT, "42"]
            assert played.completion.text == "It is 42."
        finally:
            verifier.kill()

    asyncio.run(run())


def left(family: list[int]) -> list[int]:
    """Return which of these processes still run after a while."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(map(runs, family)):
        time.sleep(0.05)
    return [pid for pid in family if runs(pid)]


def runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_verifier_that_refuses_programs_is_an_error_and_no_text() -> None:
    def refuse(_: pb.RunProgramRequest) -> pb.RunProgramResponse:
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.INVALID_ARGUMENT, grpc.aio.Metadata(), grpc.aio.Metadata(), "no tool"
        )

    with pytest.raises(grpc.aio.AioRpcError):
        texts(tool(FakeRunner(refuse)), "1")
