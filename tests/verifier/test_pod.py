"""The verifier as a process: ready file, score, SIGTERM, and a wrong pattern at start."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import grpc
import httpx
import pytest
from slipstream.v1 import types_pb2 as types
from slipstream.v1 import verifier_pb2 as pb
from slipstream.v1.verifier_pb2_grpc import VerifierStub

ENVIRONMENT = {"PYTHONPATH": "services"}


def start(
    folder: Path, config: str, environment: Mapping[str, str] = ENVIRONMENT
) -> tuple[subprocess.Popen[str], Path]:
    (folder / "run.yaml").write_text(config)
    ready = folder / "ready.json"
    command = [sys.executable, "-m", "slipstream.verifier", "--config", str(folder / "run.yaml")]
    command += ["--ready-file", str(ready)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True), ready


def wait_for(path: Path, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear in {seconds} s"
        time.sleep(0.05)


def test_the_pod_scores_and_exits_with_zero_on_sigterm(tmp_path: Path) -> None:
    process, ready = start(tmp_path, "{}")
    try:
        wait_for(ready)
        request = pb.ScoreRequest(
            prompt=types.Prompt(prompt_id="p", text="1+1=", answer="2"),
            answers=[pb.Answer(text="2", finish_reason=types.FINISH_REASON_LENGTH)],
        )
        with grpc.insecure_channel(json.loads(ready.read_text())["address"]) as channel:
            stub = VerifierStub(channel)  # type: ignore[no-untyped-call, unused-ignore]
            response = stub.Score(request, timeout=10)
        assert response.vectors[0].rewards[0].value == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=15) == 0
    finally:
        process.kill()
        process.communicate()


def test_the_pod_runs_programs_if_the_run_has_the_tool_python(tmp_path: Path) -> None:
    tools = "data: {kind: addition, environment: {kind: chat_tools, tools: [{kind: python, seconds: 5}]}}"
    process, ready = start(tmp_path, f"{tools}\nmodel: {{path: somewhere}}\nverifier: {{workers: 1}}")
    try:
        wait_for(ready)
        request = pb.RunProgramRequest(code="x + 1", earlier=["x = 1"], seconds=5, memory_mib=512)
        with grpc.insecure_channel(json.loads(ready.read_text())["address"]) as channel:
            stub = VerifierStub(channel)  # type: ignore[no-untyped-call, unused-ignore]
            assert stub.RunProgram(request, timeout=30).output == "2\n"
    finally:
        process.kill()
        process.communicate()


def processes_of(pid: int) -> list[int]:
    """Return the living processes: a process and its children."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,stat="], capture_output=True, text=True, check=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return [int(row[0]) for row in rows if str(pid) in row[:2] and not row[2].startswith("Z")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_users_reward_runs_in_children_that_end_with_the_pod(tmp_path: Path, number: int) -> None:
    config = """
rewards: [{name: mine, kind: custom, function: "verifier.custom_rewards:length"}]
evaluation: {reward: mine}
verifier: {workers: 2}
"""
    process, ready = start(tmp_path, config, {"PYTHONPATH": "services:tests", "PATH": os.environ["PATH"]})
    try:
        wait_for(ready)
        request = pb.ScoreRequest(
            prompt=types.Prompt(prompt_id="p", text="?", answer="2"),
            answers=[pb.Answer(text="four", finish_reason=types.FINISH_REASON_STOP)],
        )
        with grpc.insecure_channel(json.loads(ready.read_text())["address"]) as channel:
            stub = VerifierStub(channel)  # type: ignore[no-untyped-call, unused-ignore]
            assert stub.Score(request, timeout=10).vectors[0].rewards[0].value == 4
        family = processes_of(process.pid)
        assert len(family) == 3
        process.send_signal(number)
        assert process.wait(timeout=15) == (0 if number == signal.SIGTERM else -number)
        deadline = time.monotonic() + 10
        while left := [pid for pid in family if pid in processes_of(pid)]:
            assert time.monotonic() < deadline, f"{left} live on"
            time.sleep(0.05)
    finally:
        process.kill()
        process.communicate()


def test_a_wrong_pattern_stops_the_pod_at_start_and_names_the_key(tmp_path: Path) -> None:
    process, ready = start(tmp_path, "rewards: [{name: format, pattern: '('}]")
    _, output = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "rewards.0.pattern: is not a usable regular expression" in output
    assert not ready.exists()


def test_a_missing_function_stops_the_pod_with_one_line_and_status_2(tmp_path: Path) -> None:
    config = "rewards: [{name: mine, kind: custom, function: 'none:such'}]\nevaluation: {reward: mine}"
    process, ready = start(tmp_path, config)
    _, output = process.communicate(timeout=30)
    assert (process.returncode, len(output.splitlines())) == (2, 1)
    assert "Unprepared: none:such: No module named 'none' (in " in output
    assert not ready.exists()


def test_the_verifier_needs_neither_torch_nor_vllm_nor_pyarrow() -> None:
    program = (
        "import sys, slipstream.verifier.__main__, slipstream.prompts\n"
        "print(sorted({'torch', 'vllm', 'pyarrow', 'redis'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, check=True, text=True
    )
    assert done.stdout.strip() == "[]"


def test_the_pod_scores_over_http_beside_grpc_and_stops_both_on_sigterm(tmp_path: Path) -> None:
    process, _ = start(tmp_path, "verifier: {http_address: '127.0.0.1:0'}")
    try:
        assert process.stderr is not None
        address = next(line for line in process.stderr if "http ready" in line).split("address=")[1].strip()
        body = {"prompt": {"text": "1+1=", "answer": "2"}, "answers": [{"text": "2"}]}
        with httpx.Client() as client:
            response = client.post(f"http://{address}/v1/score", json=body, timeout=10)
            assert response.json()["vectors"][0][0]["value"] == 1
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=15) == 0
    finally:
        process.kill()
        process.communicate()
