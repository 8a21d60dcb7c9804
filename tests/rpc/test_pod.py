"""A pod as a process: its exit statuses, errors of one line, the ready file, and no surviving children."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest
from slipstream.telemetry.logs import read_event

MAIN = Path(__file__).with_name("pod_main.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(MAIN.parents[2] / "services")}


def start(behaviour: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(MAIN), behaviour, *arguments],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(behaviour: str, config: Path, *arguments: str) -> tuple[int, list[str]]:
    process = start(behaviour, "--config", str(config), *arguments)
    _, output = process.communicate(timeout=30)
    return process.returncode, output.splitlines()


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.02)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text("{}")
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_ready_pod_with_status_0(
    config: Path, tmp_path: Path, number: signal.Signals
) -> None:
    ready = tmp_path / "ready.json"
    process = start("serve", "--config", str(config), "--ready-file", str(ready), "--name", "fake-7")
    try:
        wait_until(ready.exists)
        state = json.loads(ready.read_text())
        with urlopen(f"http://127.0.0.1:{state['metrics_port']}/metrics", timeout=5) as page:
            assert page.status == 200
        process.send_signal(number)
        _, output = process.communicate(timeout=10)
    finally:
        process.kill()
    assert (process.returncode, state["pid"], state["address"]) == (0, process.pid, "127.0.0.1:5")
    assert " fake-7: stopped" in output.splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ready.json", "run.yaml"]


def test_the_garbage_collector_leaves_out_what_a_pod_loads_before_it_is_ready(config: Path) -> None:
    status, output = run("count", config)
    (line,) = [line for line in output if "objects of the garbage collector" in line]
    event = read_event(line)
    assert status == 0
    assert event is not None
    assert int(event.values["now"]) < int(event.values["before"]) / 20


@pytest.mark.parametrize(
    ("text", "says"),
    [("lerner: {}", "learner"), ("learner: {steps: 0}", "learner.steps"), ("[", "is not valid YAML")],
)
def test_a_wrong_configuration_is_status_2_and_names_the_key(config: Path, text: str, says: str) -> None:
    config.write_text(text)
    status, output = run("serve", config)
    assert status == 2
    assert says in "\n".join(output)
    assert "Traceback" not in "\n".join(output)


def test_an_error_inside_nested_task_groups_is_status_1_and_one_line(config: Path) -> None:
    status, output = run("group", config)
    assert status == 1
    assert len(output) == 1
    assert output[0].endswith('error   fake: stopped error="SlipstreamError: the worker burst"')


def test_a_wrong_key_that_only_the_running_pod_notices_is_status_2(config: Path) -> None:
    status, output = run("key", config)
    assert (status, len(output)) == (2, 1)
    assert output[0].endswith('stopped error="ConfigError: verifier.rewards[0]: no such function"')


def test_an_unexpected_error_has_its_traceback(config: Path) -> None:
    status, output = run("bug", config)
    assert status == 1
    assert output[-1].endswith("ZeroDivisionError: a bug")


def test_a_pod_ends_although_one_of_its_threads_does_not(config: Path) -> None:
    status, output = run("stuck", config)
    assert status == 1
    assert "Stuck: a call never returned" in output[-1]


def test_a_metrics_port_in_use_is_an_error_of_one_line(config: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    process = start("serve", "--config", str(config), "--ready-file", str(ready))
    try:
        wait_until(ready.exists)
        port = json.loads(ready.read_text())["metrics_port"]
        status, output = run("serve", config, "--set", f"telemetry.port={port}")
    finally:
        process.kill()
        process.communicate()
    assert (status, len(output)) == (1, 1)
    assert f"/metrics cannot listen on 127.0.0.1:{port}" in output[0]


def test_a_pod_whose_parent_has_ended_already_ends_at_once(config: Path) -> None:
    assert run("serve", config, "--parent", "1") == (1, [])


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_process_dies_with_its_parent_even_when_the_parent_is_killed() -> None:
    parent = start("parent")
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    wait_until(lambda: not _running(child), 5)


def _running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_plaintext_flag_is_one_warning_at_the_start(config: Path) -> None:
    status, output = run("group", config, "--set", "rpc.plaintext=true")
    assert status == 1
    assert len(output) == 2
    assert "warning fake: PLAINTEXT: rpc.plaintext is true" in output[0]
