"""The process of verifiers from its actor's side, with a child that does not read, or writes nonsense."""

import asyncio
import io
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from actor.program_endpoint import TOKENS, Policy, bounds, endpoint
from rollout.fakes import scenario, until
from slipstream.actor.adapters import verifiers_process
from slipstream.actor.adapters.verifiers import Verifiers
from slipstream.actor.adapters.verifiers_process import VerifiersFailed, VerifiersProcess
from slipstream.actor.adapters.verifiers_side.runner import Runner
from slipstream.actor.episode_run import run_episode
from slipstream.config.verifiers import TASK_FIELD, VerifiersEnvironment
from slipstream.records import Prompt
from slipstream.telemetry.logs import Log

CHILD = """#!{python}
import json, os, signal, sys
mode = os.environ["MODE"]
first = not os.path.exists("{mark}")
open("{mark}", "w").close()
print(json.dumps({{"ready": True}}) if mode != "babbles" else "hello", flush=True)
while first and mode == "stops":
    os.kill(os.getpid(), signal.SIGSTOP)
for line in sys.stdin:
    request = json.loads(line)
    if first and mode == "prints":
        print("a print of the environment", flush=True)
    elif first and mode == "lists":
        print("[1]", flush=True)
    elif "cancel" not in request:
        print(json.dumps({{"id": request["id"], "rewards": {{}}, "answer": "done"}}), flush=True)
"""
LARGE = {"text": "x" * 1_000_000}
"""A task that no pipe can hold."""


@asynccontextmanager
async def process(mode: str, folder: Path, *, log: Log | None = None) -> AsyncIterator[VerifiersProcess]:
    """Yield a process whose first child behaves as `mode` says, and whose later ones answer."""
    script = folder / "python"
    script.write_text(CHILD.format(python=sys.executable, mark=folder / "mark"))
    script.chmod(0o755)
    made = VerifiersProcess(
        str(script), {}, env={"MODE": mode}, start_seconds=10.0, log=log or Log(pod="test")
    )
    try:
        yield made
    finally:
        await made.close()


@scenario
async def test_a_cancelled_episode_ends_at_once_while_the_process_reads_nothing(tmp_path: Path) -> None:
    async with process("stops", tmp_path) as made:
        playing = asyncio.create_task(made.play(LARGE, base_url="", key=""))
        await until(lambda: made._waiting)
        await asyncio.sleep(0.1)
        playing.cancel()
        done, _ = await asyncio.wait([playing], timeout=2)
        assert done
        assert playing.cancelled()


@scenario
async def test_an_episode_beyond_its_time_ends_while_the_process_reads_nothing(tmp_path: Path) -> None:
    async with process("stops", tmp_path) as made, endpoint() as served:
        config = VerifiersEnvironment(python="python", arguments={"taskset": {"id": "t"}})
        environment = Verifiers(config, process=made, sessions=served.sessions, url=served.url)
        await made.start()
        started = time.monotonic()
        fields = {TASK_FIELD: '{"text": "' + "x" * 1_000_000 + '"}'}
        played = await run_episode(
            environment,
            Prompt(prompt_id="p", task="t", text="x", answer="", fields=fields),
            TOKENS.encode_text("x"),
            sample=Policy().sample,
            tokens=TOKENS,
            bounds=bounds(seconds=0.3),
        )
        assert (played.ending, time.monotonic() - started < 5) == ("timeout", True)


@pytest.mark.parametrize(("mode", "line"), [("prints", "a print of the environment"), ("lists", "[1]")])
@scenario
async def test_a_line_that_is_no_answer_fails_the_waiting_episodes_and_a_new_process_serves_the_next(
    tmp_path: Path, mode: str, line: str
) -> None:
    async with process(mode, tmp_path) as made:
        results = await asyncio.gather(
            *(made.play({}, base_url="", key="") for _ in range(3)), return_exceptions=True
        )
        for each in results:
            assert isinstance(each, VerifiersFailed)
            assert f"no JSON object to its standard output: {line}" in str(each)
        assert (await made.play({}, base_url="", key=""))["answer"] == "done"


@scenario
async def test_a_first_line_that_is_no_answer_is_why_the_process_cannot_be_started(tmp_path: Path) -> None:
    async with process("babbles", tmp_path) as made:
        with pytest.raises(VerifiersFailed, match="no JSON object to its standard output: hello"):
            await made.start()


@scenario
async def test_a_process_that_leaves_too_much_unread_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifiers_process, "MOST_UNREAD_BYTES", 1_500_000)
    lines = io.StringIO()
    async with process("stops", tmp_path, log=Log(pod="test", stream=lines)) as made:
        playing = [asyncio.create_task(made.play(LARGE, base_url="", key="")) for _ in range(2)]
        ended = await asyncio.gather(*playing, return_exceptions=True)
        assert all(isinstance(each, VerifiersFailed) for each in ended)
        assert "does not read its input" in lines.getvalue()
        assert (await made.play(LARGE, base_url="", key=""))["answer"] == "done"


@scenario
async def test_closing_ends_also_while_a_process_of_another_group_holds_the_pipes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifiers_process, "END_SECONDS", 0.3)
    async with process("answers", tmp_path) as made:
        await made.start()
        assert made._process is not None
        holder = os.path.join("/proc", str(made._process.pid), "fd", "1")
        keeper = await asyncio.create_subprocess_exec(
            "sh", "-c", f"exec sleep 60 > {holder}", start_new_session=True
        )
        await asyncio.sleep(0.2)
        try:
            async with asyncio.timeout(3):
                await made.close()
        finally:
            keeper.kill()
            await keeper.wait()


class Panic(BaseException):
    """As libraries that are written in Rust raise it."""


class Unreadable(Exception):
    """An error without a message."""

    def __str__(self) -> str:
        raise KeyError("message")


@pytest.mark.parametrize(
    "error",
    [asyncio.CancelledError(), ValueError("no"), SystemExit(3), Panic("no"), Unreadable()],
    ids=lambda error: type(error).__name__,
)
@scenario
async def test_an_error_of_the_environment_is_the_answer_to_its_episode(error: BaseException) -> None:
    class Broken(Runner):
        async def _play(self, number: int, request: dict[str, Any]) -> dict[str, Any]:
            raise error

    answers = io.StringIO()
    await Broken({}, answers)._answer(3, {})
    answer = json.loads(answers.getvalue())
    assert answer["id"] == 3
    assert answer["error"].startswith(type(error).__name__)
