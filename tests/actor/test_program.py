"""Agents as child processes: their input, the record for the rewards, and their faults."""

import asyncio
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from actor.program_endpoint import TOKENS, Policy, bounds, messages_prompt, programs
from rollout.fakes import metric, prompt, scenario, until
from slipstream.actor.episode_run import Played, run_episode
from slipstream.actor.program.command import resolved
from slipstream.actor.program.record import read_file
from slipstream.actor.sampler import RolloutsLost
from slipstream.config import ConfigError
from slipstream.config.environments import ProgramEnvironment
from slipstream.records import Prompt
from slipstream.telemetry.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
ASK = """
import json, os, sys, urllib.request

def ask(text, path="completions", **more):
    body = {"prompt": text, **more}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/" + path,
        json.dumps(body).encode(),
        {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["text"]

prompt = json.loads(os.environ["SLIPSTREAM_PROMPT"])
"""


async def play(
    script: str,
    folder: Path,
    *,
    policy: Policy | None = None,
    question: Prompt | None = None,
    seconds: float = 20.0,
    command: tuple[str, ...] | None = None,
    metrics: Metrics | None = None,
    **settings: Any,
) -> Played:
    """Return the episode of an agent that is a script."""
    (folder / "agent.py").write_text(ASK + script)
    command = command or ("{python}", "-I", "{run_folder}/agent.py")
    task_prompt = question or prompt()
    async with programs(*command, run_folder=folder, metrics=metrics, **settings) as environment:
        return await run_episode(
            environment,
            task_prompt,
            TOKENS.encode_text("0"),
            sample=(policy or Policy()).sample,
            tokens=TOKENS,
            bounds=bounds(seconds=seconds),
        )


def rewards(played: Played) -> dict[str, float]:
    return {reward.name: reward.value for reward in played.completion.rewards}


def reason(played: Played) -> str:
    assert played.ending == "failed"
    return played.completion.rewards[0].detail


@scenario
async def test_the_rewards_see_the_last_reply_and_the_exit_status(tmp_path: Path) -> None:
    policy = Policy(say=lambda context: f"{len(context)}")
    played = await play("ask('12'); ask('12345'); sys.exit(3)", tmp_path, policy=policy)
    assert played.ending == "finished"
    assert played.completion.text == "5"
    assert rewards(played) == {"exit_status": 3.0, "succeeded": 0.0, "turns": 2.0}
    assert rewards(played).keys() == set(ProgramEnvironment.reward_names)
    assert len(played.completion.segments) == 2


@pytest.mark.parametrize(
    ("source", "text"),
    [("stdout", "shown\n"), ("file:answer.txt", "written"), ("conversation", "well"), ("file:none", "")],
)
@scenario
async def test_the_answer_comes_from_the_configured_source(source: str, text: str, tmp_path: Path) -> None:
    script = "ask('1'); print('shown'); open('answer.txt', 'w').write('written')"
    played = await play(script, tmp_path, answer_from=source)
    assert played.completion.text == text


@scenario
async def test_a_record_has_the_conversation_the_exit_status_the_output_and_the_files(tmp_path: Path) -> None:
    script = "ask('1'); print('shown'); open('a', 'w').write('x' * 3000); os.symlink('/etc/passwd', 'b')"
    played = await play(script, tmp_path, answer_from="record", files=["a", "b", "c"], file_kib=2)
    assert json.loads(played.completion.text) == {
        "reply": "well",
        "conversation": "well",
        "exit_status": 0,
        "stdout": "shown\n",
        "files": {"a": "x" * 2048, "b": None, "c": None},
    }


@scenario
async def test_a_program_gets_the_prompt_without_the_ground_truth_and_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    monkeypatch.setenv("WANTED", "yes")
    question = messages_prompt("first", "last", fields={"shown": "1", "tests": "secret tests"})
    played = await play(
        "ask('1'); print(json.dumps({'prompt': prompt, 'arguments': sys.argv[1:], 'env': dict(os.environ),"
        "'folder': os.getcwd(), 'file': json.load(open(os.environ['SLIPSTREAM_PROMPT_FILE']))}))",
        tmp_path,
        question=question,
        command=("{python}", "-I", "{run_folder}/agent.py", "--task={prompt}"),
        fields=["shown"],
        env={"MINE": "1"},
        inherit_env=["WANTED"],
        answer_from="stdout",
    )
    seen = json.loads(played.completion.text)
    assert seen["prompt"] == seen["file"]
    assert [message["content"] for message in seen["prompt"]["messages"]] == ["first", "last"]
    assert seen["prompt"]["fields"] == {"shown": "1"}
    assert seen["arguments"] == ["--task=last"]
    assert (seen["env"]["MINE"], seen["env"]["WANTED"]) == ("1", "yes")
    assert seen["env"]["HOME"] == seen["folder"]
    assert not os.access(seen["folder"], os.F_OK), "the folder is removed"
    assert "SECRET_TOKEN" not in seen["env"]
    assert "tests" not in seen["prompt"]["fields"]


@scenario
async def test_members_of_a_group_have_the_same_seed(tmp_path: Path) -> None:
    script = "ask('1'); print(os.environ['SLIPSTREAM_SEED'])"
    one, two = [await play(script, tmp_path, answer_from="stdout") for _ in range(2)]
    other = await play(script, tmp_path, answer_from="stdout", question=prompt(1))
    assert one.completion.text == two.completion.text != other.completion.text


@scenario
async def test_a_program_that_ends_at_once_is_withheld_with_its_error_output(tmp_path: Path) -> None:
    metrics = Metrics()
    played = await play("import missing_module", tmp_path, metrics=metrics)
    assert "exit status 1 before a turn" in reason(played)
    assert "No module named 'missing_module'" in reason(played)
    assert metric(metrics, "program_exits_total", end="nonzero") == 1


@scenario
async def test_a_program_whose_requests_are_refused_is_withheld_with_the_reason(tmp_path: Path) -> None:
    played = await play("ask('1', temperature=0)", tmp_path, sampling="refuse")
    assert "its last request was refused: temperature" in reason(played)


@scenario
async def test_a_missing_program_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    for command in (("no-such-program",), ("./agent",), ("{python}", "{run_folder}/missing.py")):
        with pytest.raises(ConfigError, match=r"data\.environment\.command"):
            async with programs(*command, run_folder=tmp_path):
                pass


@scenario
async def test_a_program_that_never_ends_is_killed_with_all_its_processes(tmp_path: Path) -> None:
    script = """
import subprocess
ask("1")
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
children = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]
with open(os.environ["SLIPSTREAM_RUN_FOLDER"] + "/pids", "w") as file:
    file.write(" ".join(str(each.pid) for each in children) + f" {os.getpid()}")
import time; time.sleep(600)
"""
    metrics = Metrics()
    played = await play(script, tmp_path, seconds=3.0, metrics=metrics)
    assert played.ending == "timeout"
    assert "data.environment.seconds" in played.completion.rewards[0].detail
    assert metric(metrics, "program_exits_total", end="killed") == 1
    pids = list(map(int, (tmp_path / "pids").read_text().split()))
    await until(lambda: not any(_lives(pid) for pid in pids))


def _lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@scenario
async def test_an_agent_is_cleaned_up_while_code_of_the_user_keeps_all_threads_busy(tmp_path: Path) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
    busy = asyncio.create_task(asyncio.to_thread(time.sleep, 8.0))
    script = """
import subprocess
ask("1")
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open(os.environ["SLIPSTREAM_RUN_FOLDER"] + "/seen", "w") as file:
    file.write(f"{left.pid} {os.environ['HOME']}")
import time; time.sleep(600)
"""
    (tmp_path / "agent.py").write_text(ASK + script)
    async with programs("{python}", "-I", "{run_folder}/agent.py", run_folder=tmp_path) as environment:
        playing = asyncio.create_task(
            run_episode(
                environment,
                prompt(),
                TOKENS.encode_text("0"),
                sample=Policy().sample,
                tokens=TOKENS,
                bounds=bounds(seconds=600.0),
            )
        )
        await until((tmp_path / "seen").exists)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        pid, home = (tmp_path / "seen").read_text().split()
        await until(lambda: not _lives(int(pid)))
        assert not os.path.exists(home)  # noqa: ASYNC240
        assert not busy.done()
    await busy


@scenario
async def test_processes_that_outlive_their_program_are_killed(tmp_path: Path) -> None:
    script = """
import subprocess
ask("1")
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(left.pid)
"""
    started = time.monotonic()
    played = await play(script, tmp_path, answer_from="stdout")
    assert time.monotonic() - started < 15, "the pipe that the left process holds does not delay the episode"
    await until(lambda: not _lives(int(played.completion.text)))


@scenario
async def test_lost_sampling_ends_the_program_and_is_the_error_of_the_episode(tmp_path: Path) -> None:
    script = """
import time
try:
    ask("1")
except Exception:
    time.sleep(600)
"""
    with pytest.raises(RolloutsLost):
        await play(script, tmp_path, policy=Policy(error=RolloutsLost("gone")))


@scenario
async def test_a_full_episode_is_kept_with_the_files_of_the_program(tmp_path: Path) -> None:
    script = "ask('1')\nfor _ in range(60): ask('2')"
    played = await play(script, tmp_path)
    assert played.ending == "full"
    assert rewards(played)["succeeded"] == 0
    assert len(played.completion.segments) == 50


@scenario
async def test_programs_wait_for_a_place_and_the_wait_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(ASK + "import time; time.sleep(0.5); ask('1')")
    metrics = Metrics()
    command = ("{python}", "-I", "{run_folder}/agent.py")
    most = 0.0
    async with programs(*command, run_folder=tmp_path, metrics=metrics, most_processes=2) as environment:

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, metric(metrics, "programs_running"))
                await asyncio.sleep(0.01)

        watching = asyncio.create_task(watch())
        limits = bounds(seconds=15.0)
        episodes = [
            run_episode(
                environment,
                prompt(),
                (5,),
                sample=Policy().sample,
                tokens=TOKENS,
                bounds=limits,
            )
            for _ in range(6)
        ]
        played = await asyncio.gather(*episodes)
        watching.cancel()
    assert most == 2
    assert {each.ending for each in played} == {"finished"}
    assert metric(metrics, "programs_running") == 0


@scenario
async def test_long_output_is_truncated_and_does_not_block_the_program(tmp_path: Path) -> None:
    script = "ask('1'); sys.stdout.write('x' * 3_000_000 + 'end'); sys.stderr.write('y' * 3_000_000)"
    played = await play(script, tmp_path, answer_from="stdout", file_kib=1)
    assert len(played.completion.text) == 1024
    assert played.completion.text.endswith("xend")


def test_placeholders_of_a_prompt_are_not_replaced(tmp_path: Path) -> None:
    command = resolved(
        ["{python}", "{prompt}", "a{run_folder}b"], prompt="{python} {prompt}", run_folder=tmp_path
    )
    assert command == [os.path.abspath(sys.executable), "{python} {prompt}", f"a{tmp_path}b"]


def test_a_named_pipe_and_a_folder_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    assert read_file(tmp_path, "pipe", 10) is None
    assert read_file(tmp_path, "folder", 10) is None


@scenario
async def test_the_agent_of_the_page_calls_its_calculator_when_the_policy_asks_for_it(tmp_path: Path) -> None:
    policy = Policy(say=lambda context: "?" if context.endswith("=") else context.rpartition("?")[2][:-1])
    command = ("{python}", f"{ROOT}/examples/agent_program.py")
    question = prompt(21)
    played = await play(
        "", tmp_path, policy=policy, question=question, command=command, answer_from="file:answer.txt"
    )
    assert played.completion.text == question.answer == "42"
    assert len(played.completion.segments) == 1, "the second request continues the text of the first"
