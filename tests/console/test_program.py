"""`slipstream console` as a user starts it."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from console.runs import make_run


def test_the_command_serves_a_run_until_it_is_interrupted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "made", steps=1)
    command = [sys.executable, "-m", "slipstream.cli", "console", str(run), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = process.stdout.readline().split()[1]
    with urlopen(f"{address}api/run") as answer:
        assert json.loads(answer.read())["name"] == "made"
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_directory_that_is_no_run_is_wrong_usage(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    command = [sys.executable, "-m", "slipstream.cli", "console", str(tmp_path / name), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("slipstream: console: ")


def test_an_objective_without_a_module_is_wrong_usage(tmp_path: Path) -> None:
    run = make_run(tmp_path / "made", steps=1)
    command = [sys.executable, "-m", "slipstream.cli", "console", str(run), "--port", "0"]
    done = subprocess.run([*command, "--objective", "soft"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("slipstream: console: ")
    assert "package.module:function" in done.stderr
