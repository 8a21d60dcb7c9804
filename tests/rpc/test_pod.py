"""What every pod does as a process: exit statuses, one line for an error, the ready file, no orphans."""

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
    _, said = process.communicate(timeout=30)
    return process.returncode, said.splitlines()


def wait_until(true: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
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
        _, said = process.communicate(timeout=10)
    finally:
        process.kill()
    assert (process.returncode, state["pid"], state["address"]) == (0, process.pid, "127.0.0.1:5")
    assert " fake-7: stopped" in said.splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ready.json", "run.yaml"]


@pytest.mark.parametrize(
    ("text", "says"),
    [("lerner: {}", "learner"), ("learner: {steps: 0}", "learner.steps"), ("[", "is not valid YAML")],
)
def test_a_wrong_configuration_is_status_2_and_names_the_key(config: Path, text: str, says: str) -> None:
    config.write_text(text)
    status, said = run("serve", config)
    assert status == 2
    assert says in "\n".join(said)
    assert "Traceback" not in "\n".join(said)


def test_an_error_inside_nested_task_groups_is_status_1_and_one_line(config: Path) -> None:
    status, said = run("group", config)
    assert status == 1
    assert len(said) == 1
    assert said[0].endswith('error   fake: stopped error="SlipstreamError: the worker burst"')


def test_a_wrong_key_that_only_the_running_pod_can_see_is_status_2_too(config: Path) -> None:
    status, said = run("key", config)
    assert (status, len(said)) == (2, 1)
    assert said[0].endswith('stopped error="ConfigError: verifier.rewards[0]: no such function"')


def test_a_bug_keeps_its_traceback(config: Path) -> None:
    status, said = run("bug", config)
    assert status == 1
    assert said[-1].endswith("ZeroDivisionError: a bug")


def test_a_pod_ends_although_one_of_its_threads_never_will(config: Path) -> None:
    status, said = run("stuck", config)
    assert status == 1
    assert "Stuck: a call never returned" in said[-1]


def test_a_metrics_port_in_use_is_one_line(config: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    process = start("serve", "--config", str(config), "--ready-file", str(ready))
    try:
        wait_until(ready.exists)
        port = json.loads(ready.read_text())["metrics_port"]
        status, said = run("serve", config, "--set", f"telemetry.port={port}")
    finally:
        process.kill()
        process.communicate()
    assert (status, len(said)) == (1, 1)
    assert f"/metrics cannot listen on 127.0.0.1:{port}" in said[0]


def test_a_pod_whose_parent_is_gone_already_ends_at_once(config: Path) -> None:
    assert run("serve", config, "--parent", "1") == (1, [])


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_process_dies_with_its_parent_even_when_that_one_is_killed() -> None:
    parent = start("parent")
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    wait_until(lambda: not _running(child), 5)


def _running(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_plaintext_flag_is_one_loud_line_at_the_start(config: Path) -> None:
    status, said = run("group", config, "--set", "rpc.plaintext=true")
    assert status == 1
    assert len(said) == 2
    assert "warning fake: PLAINTEXT: rpc.plaintext is true" in said[0]
