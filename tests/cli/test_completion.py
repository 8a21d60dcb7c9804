"""A real bash completes commands, options and file names of `slipstream` when Tab is pressed."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SECONDS = 60.0
REGISTER = 'eval "$(register-python-argcomplete slipstream)"'
"""The line of docs/getting-started.md for ~/.bashrc."""


class Bash:
    """An interactive bash on a pseudo-terminal."""

    def __init__(self, folder: Path) -> None:
        self._terminal, child = pty.openpty()
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        settings = {"PATH": path, "PS1": "$ ", "TERM": "dumb", "INPUTRC": "/dev/null", "HOME": str(folder)}
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=child,
            stdout=child,
            stderr=child,
            cwd=folder,
            env=settings,
            start_new_session=True,
        )
        os.close(child)

    def send(self, keys: str, *, until: str) -> str:
        """Press keys, and return the output of the terminal up to the text `until`, within SECONDS."""
        os.write(self._terminal, keys.encode())
        end, shown = time.monotonic() + SECONDS, ""
        while until not in shown:
            ready, _, _ = select.select([self._terminal], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no {until!r} in {SECONDS:g} s: {shown!r}"
            shown += os.read(self._terminal, 4096).decode(errors="replace")
        return shown

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


@pytest.fixture
def bash(tmp_path: Path) -> Iterator[Bash]:
    (tmp_path / "my_own_run.yaml").write_text("")
    shell = Bash(tmp_path)
    yield shell
    shell.close()


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("slipstream vali", "slipstream validate "),
        ("slipstream validate --inst", "slipstream validate --installed "),
        ("slipstream validate my_o", "slipstream validate my_own_run.yaml "),
        ("slipstream export a b --dtype f", "slipstream export a b --dtype float32 "),
        ("slipstream cluster pau", "slipstream cluster pause "),
        ("slipstream stat", "slipstream status "),
        ("slipstream led", "slipstream ledger "),
        ("slipstream plot --format s", "slipstream plot --format svg "),
    ],
)
def test_tab_completes_commands_options_and_files(bash: Bash, typed: str, completed: str) -> None:
    bash.send(f"{REGISTER}; echo regis''tered\n", until="registered\r\n$ ")
    assert completed in bash.send(f"{typed}\t", until=completed)


def test_two_tabs_list_the_commands(bash: Bash) -> None:
    bash.send(f"{REGISTER}; echo regis''tered\n", until="registered\r\n$ ")
    shown = bash.send("slipstream \t\t", until="\n$ slipstream ")  # bash repeats the line
    assert {"run", "validate", "algorithms", "score", "status", "ledger", "plot"} <= set(shown.split())


def test_argcomplete_is_imported_only_for_completion() -> None:
    code = (
        "import sys; from slipstream.cli.__main__ import main; main(['algorithms', 'grpo']); "
        "print('argcomplete' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "False"
