"""A real verifier that gets SIGTERM or SIGSTOP while it scores, or runs a program of the tool `python`."""

import asyncio
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import yaml
from slipstream.actor.tools.python_tool import NO_OUTPUT, Notebook, ProgramClient
from slipstream.actor.verifier_client import VerifierClient
from slipstream.config import RunConfig
from slipstream.config.environments import PythonTool
from slipstream.records import Completion, FinishReason, Outcome, Prompt, VersionSpan
from slipstream.rpc.channel import open_channel
from slipstream.telemetry.logs import Log
from slipstream.verifier.__main__ import GRACE_SECONDS

pytestmark = pytest.mark.faults
SLOW = GRACE_SECONDS + 2.0
"""Seconds of a call that a verifier cannot finish after SIGTERM."""
CALL_SECONDS = 12.0
"""Longest time of a call of the tool."""
REWARD = """
import time


def slow(prompt, answer):
    time.sleep(float(answer.text))
    return 1.0
"""


@dataclass(slots=True, kw_only=True)
class Pod:
    """A verifier, always at the same port."""

    folder: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        arguments = ["--config", str(self.folder / "run.yaml"), "--ready-file", str(ready)]
        with (self.folder / "verifier.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "slipstream.verifier", *arguments, "--parent", str(os.getpid())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(self.folder)])},
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 60
        while not ready.exists():
            assert time.monotonic() < deadline, (self.folder / "verifier.log").read_text()
            time.sleep(0.05)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Wait for its end, and return the exit status."""
        assert self.process is not None
        return await asyncio.to_thread(self.process.wait, 30)


@asynccontextmanager
async def verifier(
    folder: Path, **settings: object
) -> AsyncIterator[tuple[Pod, RunConfig, grpc.aio.Channel]]:
    """Start a verifier with a slow reward and the tool `python`; yield it with a channel to it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "slow_reward.py").write_text(REWARD)
    run = {
        "rewards": [
            {"name": "slow", "kind": "custom", "function": "slow_reward:slow", "timeout_seconds": 20}
        ],
        "evaluation": {"reward": "slow"},
        "verifier": {"address": f"127.0.0.1:{port}", "workers": 1, "timeout_seconds": 20.0, **settings},
        "data": {
            "kind": "addition",
            "environment": {
                "kind": "chat_tools",
                "tools": [{"kind": "python", "state": True, "seconds": CALL_SECONDS}],
            },
        },
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(run))
    config = RunConfig.model_validate(json.loads(json.dumps(run)))
    pod = Pod(folder=folder, port=port)
    await asyncio.to_thread(pod.start)
    try:
        async with open_channel(f"127.0.0.1:{port}", config.rpc) as channel:
            yield pod, config, channel
    finally:
        pod.send(signal.SIGKILL)
        await pod.ended()


def notebook(channel: grpc.aio.Channel, config: RunConfig) -> Notebook:
    """Return the tool `python` with state."""
    runner = ProgramClient(channel, config)
    return Notebook(
        PythonTool(state=True, seconds=CALL_SECONDS),
        runner,
        group="p",
        log=Log(pod="actor", stream=io.StringIO()),
    )


def program(seconds: float) -> dict[str, str]:
    return {"code": f"import time; time.sleep({seconds}); x += 1; x"}


@pytest.mark.parametrize("seconds", [1.5, SLOW], ids=["finished by it", "repeated at the next"])
def test_a_program_is_run_to_its_end_when_its_verifier_gets_sigterm(tmp_path: Path, seconds: float) -> None:
    async def play() -> None:
        async with verifier(tmp_path) as (pod, config, channel):
            tool = notebook(channel, config)
            assert await tool.answer({"code": "x = 20"}) == ("ok", NO_OUTPUT)
            running = asyncio.create_task(tool.answer(program(seconds)))
            await asyncio.sleep(0.7)
            pod.send(signal.SIGTERM)
            assert await pod.ended() == 0
            await asyncio.to_thread(pod.start)
            assert await running == ("ok", "21")
            assert await tool.answer({"code": "x"}) == ("ok", "21")

    asyncio.run(asyncio.wait_for(play(), 120))


def test_a_program_is_repeated_when_its_verifier_is_stopped_and_goes_on(tmp_path: Path) -> None:
    async def play() -> None:
        async with verifier(tmp_path) as (pod, config, channel):
            tool = notebook(channel, config)
            assert await tool.answer({"code": "x = 20"}) == ("ok", NO_OUTPUT)
            running = asyncio.create_task(tool.answer(program(1.0)))
            await asyncio.sleep(0.7)
            pod.send(signal.SIGSTOP)
            await asyncio.sleep(6.0)
            assert not running.done()
            pod.send(signal.SIGCONT)
            assert await running == ("ok", "21")
            assert await tool.answer({"code": "x"}) == ("ok", "21")

    asyncio.run(asyncio.wait_for(play(), 120))


def test_answers_are_scored_by_the_next_verifier_when_theirs_gets_sigterm(tmp_path: Path) -> None:
    async def play() -> None:
        async with verifier(tmp_path) as (pod, config, channel):
            client = VerifierClient(channel, config.verifier, rewards=config.rewards)
            prompt = Prompt(prompt_id="p", task="addition", answer="3", text="1+2=")
            running = asyncio.create_task(client.score(prompt, [answer(SLOW)]))
            await asyncio.sleep(0.7)
            pod.send(signal.SIGTERM)
            assert await pod.ended() == 0
            await asyncio.to_thread(pod.start)
            (scored,) = await running
            assert [(reward.outcome, reward.value) for reward in scored.rewards] == [(Outcome.SCORE, 1.0)]

    asyncio.run(asyncio.wait_for(play(), 120))


def answer(seconds: float) -> Completion:
    """Return an answer that takes so long to score."""
    return Completion(
        token_ids=(1,),
        logprobs=(-1.0,),
        mask=(1,),
        spans=(VersionSpan(version=0, start=0, end=1),),
        finish_reason=FinishReason.STOP,
        text=str(seconds),
    )
